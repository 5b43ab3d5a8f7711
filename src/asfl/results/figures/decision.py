"""The pictures of a decision, and of many rounds of deciding."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asfl.optimize import Solution
from asfl.optimize.grid import objective_of_cuts
from asfl.optimize.terms import CutTerms
from asfl.results.curves import OURS
from asfl.results.figures.figure import BUDGET, CUT_LABEL, GOOD, MEDIAN, OTHER, drawing, whole_numbers
from asfl.results.figures.training import style_of
from asfl.runs.play import Playthrough

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_decision(solution: Solution) -> "Figure":
    """Objective of every cut, who has which resource blocks, and the powers."""
    problem, decision = solution.problem, solution.decision
    with drawing(10.5, 7) as figure:
        layout = figure.subplot_mosaic([["cuts", "cuts"], ["rbs", "power"]])
        terms = CutTerms.of(problem.round, problem.round.profile.cuts)
        values = objective_of_cuts(problem, terms, decision.rb_count, decision.tx_power_w)
        cuts = layout["cuts"]
        cuts.plot(terms.cuts, values, color=OTHER, marker="o")
        chosen = terms.cuts == decision.cut
        cuts.plot(terms.cuts[chosen], values[chosen], color=GOOD, marker="o", markersize=11, linestyle="none")
        if values.max() > 30 * max(abs(float(values.min())), 1e-9):
            cuts.set_yscale("symlog", linthresh=max(abs(float(values.min())), 1e-9))
        cuts.set_title(f"Cut {decision.cut} is best for these blocks and powers (drift + V · objective; low is good)")
        cuts.set(xlabel=CUT_LABEL, ylabel="objective")
        _draw_blocks(layout["rbs"], solution)
        power = layout["power"]
        clients = np.arange(problem.round.num_clients)
        power.bar(clients, decision.tx_power_w, color=MEDIAN)
        top = problem.round.radio.max_tx_power_w
        power.axhline(top, color=BUDGET, linestyle="--", linewidth=1.2, label=f"most: {top:g} W")
        power.set_title("Transmit power")
        power.set(xlabel="client", ylabel="W", ylim=(0, 1.15 * top))
        power.legend(loc="upper right")
        for axes in (cuts, layout["rbs"], power):
            whole_numbers(axes)
        budget = problem.rules
        kept = "keeps both budgets" if solution.feasible else "misses a budget"
        figure.suptitle(
            f"{problem.round.profile.name}: expected {float(solution.expected.delay_s):.3g} s (budget "
            f"{budget.delay_budget_s:.3g} s), at most {solution.expected.energy_j.max():.3g} J a client (budget "
            f"{budget.energy_budget_j:.3g} J): {kept}",
            fontsize=11,
        )
    return figure


def _draw_blocks(axes: "Axes", solution: Solution) -> None:
    problem, decision = solution.problem, solution.decision
    axes.set_title("Resource blocks")
    owned = decision.rb_mask
    picture = np.zeros((problem.round.num_clients, problem.round.radio.num_rbs))
    picture[:, : owned.shape[1]] = owned
    axes.imshow(picture.T, aspect="auto", cmap="Greens", vmin=0, vmax=1.3, origin="lower")
    axes.set(xlabel="client", ylabel="block")
    axes.grid(visible=False)


def _borrows(played: Playthrough, asfl: Playthrough | None) -> bool:
    """Whether a scheme's queues are ASFL's, because it borrows from it."""
    pairs = zip(played.rounds, asfl.rounds, strict=False) if asfl is not None else ()  # one may end sooner
    return asfl is not None and all(one.queues.delay == other.queues.delay for one, other in pairs)


def draw_playthroughs(playthroughs: Sequence[Playthrough]) -> "Figure":
    """Cuts, delay queue, energy queue and total delay over rounds; a line per scheme, the first seed of each."""
    first = {played.scheme: played for played in reversed(playthroughs)}
    shown = [first[name] for name in dict.fromkeys(played.scheme for played in playthroughs)]
    with drawing(12, 8) as figure:
        (cuts, delay), (delay_queue, energy_queue) = figure.subplots(2, 2, sharex=True)
        for played in shown:
            style, chosen = style_of(played.scheme), [one.cut for one in played.rounds]
            jumps = len(chosen) > 1 and np.mean(np.diff(chosen) != 0) > 0.5
            rounds = np.arange(1, len(chosen) + 1)
            cuts.step(rounds, chosen, where="mid", label=played.scheme, alpha=0.25 if jumps else 1, **style)
            delay.plot(rounds, np.cumsum([one.delay_s for one in played.rounds]), **style)
            if played.scheme == OURS or not _borrows(played, first.get(OURS)):
                delay_queue.plot(rounds, [one.queues.delay for one in played.rounds], **style)
                energy_queue.plot(rounds, [one.queues.energy.mean() for one in played.rounds], **style)
        allowed = np.arange(1, len(shown[0].rounds) + 1) * shown[0].budgets.delay_s
        delay.plot(np.arange(1, len(allowed) + 1), allowed, color=BUDGET, linestyle="--", label="budget")
        delay.set(yscale="log", ylabel="s")
        delay.legend()
        cuts.set(ylabel="layers on the client")
        titles = ("Cut", "Delay so far", "Delay queue", "Energy queue, mean over clients")
        for axes, title in zip((cuts, delay, delay_queue, energy_queue), titles, strict=True):
            axes.set(title=title, xlabel="round")
        for axes in (delay_queue, energy_queue):
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_ylim(bottom=0)
            axes.set_ylabel("backlog")
        legend = figure.legend(*cuts.get_legend_handles_labels(), loc="outside right center", handlelength=3.2)
        for line in legend.get_lines():
            line.set_alpha(1)
    return figure

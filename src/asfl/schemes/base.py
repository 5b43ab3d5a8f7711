"""What a scheme is: how it decides, and how its rounds are charged; by which rules, and what it decides by them,
checked and complete; and what several schemes share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.costs.modelled import ExchangeRules
from asfl.costs.round import ALLOWED_BITS, MOST_BATCHES, Decision, Round, check_decision
from asfl.costs.world import Budgets, RemainingBudget, World, resolve_budgets
from asfl.optimize import Problem, Rules, solve
from asfl.optimize.assign import assigned
from asfl.optimize.problem import PUBLISHED, Switches

Floats = NDArray[np.float64]
T = TypeVar("T")
Values = Mapping[str, object] | tuple[float, float]
"""What a parameter of a scheme may be: what each text stands for, or a number from … to."""
ON_OFF: Values = {"on": True, "off": False}
BITS: Values = {str(bits): bits for bits in sorted(ALLOWED_BITS)}
WHOLE: Values = {str(number): number for number in range(1, 21)}
MAX_PASSES = 20
LEAST_GAIN = 1e-12
"""A descent ends when a pass shortens what it minimises by less than this share."""


@dataclass(frozen=True, eq=False)
class Decided:
    """A scheme's decision, and the ASFL decision behind it if there is one.

    Schemes that borrow from ASFL let it decide the whole round. FedAvg, SL and SFL take its blocks and powers; the
    others serve the same clients and decide the rest. Queues then follow what ASFL's own decision costs, so that it
    stays the decision ASFL would make.
    """

    decision: Decision
    reference: Decision | None = None
    """None: the decision answers for the budgets itself."""


def borrows(scheme: "Scheme") -> bool:
    """Whether a scheme takes blocks and powers, or the clients that it serves, from ASFL."""
    return bool(getattr(scheme, "borrows", False))


def watches_noise(scheme: "Scheme") -> bool:
    """Whether a scheme that decides no more than the paper's still wants the gradient noise scale measured."""
    return bool(getattr(scheme, "watches_noise", False))


def switches_of(scheme: "Scheme") -> Switches:
    """Which decisions beyond the paper a scheme makes."""
    found: Switches = getattr(scheme, "switches", PUBLISHED)
    return found


def noise_scale(problem: Problem) -> float:
    """B in mini-batches; 1 before anything is known."""
    return 1.0 if problem.learning.beyond is None else problem.learning.beyond.noise_scale


class Scheme(Protocol):
    """A scheme has no state: everything it may know is in the problem, everything random is keyed by seed and round."""

    @property
    def name(self) -> str: ...

    @property
    def exchange(self) -> ExchangeRules: ...

    def decide(self, problem: Problem, seed: int) -> Decision | Decided: ...


def decided_by(scheme: Scheme, problem: Problem, seed: int) -> Decided:
    """What a scheme decides, whichever of the two forms it returns."""
    decided = scheme.decide(problem, seed)
    return Decided(decided) if isinstance(decided, Decision) else decided


def budgets_of(world: World, scheme: Scheme) -> Budgets:
    """The budgets of a scheme in a world; one that can't move its cut has those of its own cut."""
    return resolve_budgets(world, scheme.exchange, getattr(scheme, "cuts", None))


def rules_of(config: Config, budgets: Budgets, switches: Switches = PUBLISHED) -> Rules:
    """The decision rules of a configuration, with every "auto" turned into a number."""
    clients, num_rbs, batteries = config.scenario.clients, config.radio.num_rbs, config.budget.battery_j != "off"
    return Rules.of(config.decision, clients, num_rbs, budgets, switches, batteries=batteries)


def decide(scheme: Scheme, problem: Problem, reserves: RemainingBudget | None = None) -> Decided:
    """What a scheme decides, checked, with the blocks of each client; without clients whose battery is empty."""
    found, round_ = decided_by(scheme, problem, problem.seed), problem.round
    decision, reference = _as_allocated(found.decision, round_), found.reference
    if reserves is not None:
        decision = reserves.without_empty(decision)
    if reference is not None:
        reference = _as_allocated(reference, round_)
    check(decision, problem, scheme)
    if not decision.scheduled.any() and round_.previous_cut is not None and np.ndim(decision.cut) == 0:
        decision = replace(decision, cut=round_.previous_cut)  # without any client, layers stay where they are
    if round_.block_gain is not None and not scheme.exchange.in_sequence:  # clients in turn have their best blocks
        decision = assigned(round_, decision)
        reference = None if reference is None else assigned(round_, reference)
    return Decided(decision, reference)


def _as_allocated(decision: Decision, round_: Round) -> Decision:
    """With the blocks and powers that the round gives, if it gives them: of the decision the cut is left."""
    if round_.allocation is None:
        return decision
    count, power = round_.allocation
    return replace(decision, rb_count=count, tx_power_w=power)


def check(decision: Decision, problem: Problem, scheme: Scheme) -> None:
    """Refuse a decision that can't be carried out; schemes may come from anywhere."""
    round_ = problem.round
    try:
        for name in ("rb_count", "tx_power_w"):
            shape = np.shape(getattr(decision, name))
            if shape != (round_.num_clients,):
                raise AsflError(f"decision.{name} has shape {shape}, but there are {round_.num_clients} clients")
        if decision.batch is not None:
            _check_batch(decision.batch, round_, scheme)
        check_decision(
            decision,
            round_.profile.num_layers,
            round_.radio.num_rbs,
            round_.radio.max_tx_power_w,
            in_sequence=scheme.exchange.in_sequence,
        )
        if np.ndim(decision.cut) and scheme.exchange.keeps_client_sides:
            raise AsflError("decision.cut: a cut for each client needs rounds that average whole client models")
        served = np.broadcast_to(decision.cut, round_.num_clients)[decision.scheduled]
        if (served < round_.profile.min_cut).any() and not scheme.exchange.full_local_model:
            raise AsflError(f"it cuts at {served.min()}, but privacy.min_cut = {round_.profile.min_cut}")
    except AsflError as error:
        raise AsflError(f"scheme {scheme.name}, round {round_.index + 1}: {error}") from None


def _check_batch(batch: NDArray[np.int64], round_: Round, scheme: Scheme) -> None:
    most = int(MOST_BATCHES * round_.batch_size)
    if np.shape(batch) != (round_.num_clients,) or batch.max() > most:
        raise AsflError(f"decision.batch = {batch} must be a number of samples for each client, at most {most}")
    if scheme.exchange.aggregated_share > 0 or scheme.exchange.mixes:
        raise AsflError("decision.batch: what is mixed needs as many samples of every client")


# ---------------------------------------------------------------------- what several schemes share
def asfl_decision(problem: Problem, solver: Literal["bcd", "joint"] | None = None) -> Decision:
    """What ASFL decides, by the solver given or configured; also what other schemes borrow."""
    return solve(problem, solver).decision


def borrowed_decision(problem: Problem) -> Decision:
    """ASFL's decision of this round: the one it recorded in this world, else the one it would make."""
    return problem.reference or asfl_decision(problem)


def draw(problem: Problem, seed: int, purpose: str) -> np.random.Generator:
    """Random numbers of a scheme in this round; the same for every scheme that draws for the same purpose."""
    return random_stream(seed, f"scheme: {purpose}", problem.round.index)


def random_cut(problem: Problem, seed: int) -> int:
    """A cut drawn uniformly from all that are allowed."""
    profile = problem.round.profile
    return int(draw(problem, seed, "cut").integers(profile.min_cut, profile.num_layers))


def random_powers(problem: Problem, seed: int) -> Floats:
    """Powers drawn uniformly from (0, P^max]."""
    uniform = 1.0 - draw(problem, seed, "power").random(problem.round.num_clients)
    return np.asarray(problem.round.radio.max_tx_power_w * uniform)


def random_counts(problem: Problem, seed: int) -> Floats:
    """Blocks dealt out at random: one each to as many clients as possible, the rest to random ones of those."""
    random = draw(problem, seed, "rbs")
    clients = np.flatnonzero(problem.reachable)
    num_rbs = problem.round.radio.num_rbs
    served = random.permutation(clients)[:num_rbs]
    counts = np.zeros(problem.round.num_clients)
    counts[served] = 1.0
    if served.size:
        np.add.at(counts, random.choice(served, num_rbs - len(served)), 1.0)
    return counts


# ---------------------------------------------------------------------- schemes that make a round or training short
def decided_for_served(
    problem: Problem, idle: Decision, decide: Callable[[Round, NDArray[np.int64]], Decision]
) -> "Decided":
    """What is decided for the clients that ASFL serves, as if there were no others; these have what `idle` says."""
    reference = borrowed_decision(problem)
    clients = np.flatnonzero(reference.scheduled)
    if not clients.size:
        return Decided(idle, reference)
    found = decide(problem.round.among(clients), clients)
    for name in ("cut", "rb_count", "tx_power_w", "batch"):
        of_all, of_served = getattr(idle, name), getattr(found, name)
        if np.ndim(of_all):
            spread = of_all.copy()
            spread[clients] = of_served
            found = replace(found, **{name: spread})
    return Decided(found, reference)


def descend(start: T, improved: Callable[[T], T], seconds: Callable[[T], float]) -> T:
    """Improve in passes until a pass gains nothing."""
    best, least_s = start, seconds(start)
    for _ in range(MAX_PASSES):
        found = improved(best)
        found_s = seconds(found)
        if not found_s < least_s * (1 - LEAST_GAIN):
            break
        best, least_s = found, found_s
    return best


def even_counts(round_: Round) -> Floats:
    """Every block handed out, as evenly as whole blocks allow; needs at least one block per client."""
    each, left = divmod(round_.radio.num_rbs, round_.num_clients)
    return np.where(np.arange(round_.num_clients) < left, each + 1.0, float(each))


def relative_uplink_s(round_: Round, tx_power_w: Floats) -> Floats:
    """[K', N]: time of a transmission with 1, 2, … K' blocks, relative to one block; K' leaves one for each other."""
    most = round_.radio.num_rbs - round_.num_clients + 1
    rate = round_.uplink_rate_bps(np.arange(1.0, most + 1)[:, None], tx_power_w)
    return np.asarray(np.divide(rate[0], rate, out=np.ones_like(rate), where=rate > 0))

"""What a scheme is: how it decides, and how its rounds are charged; and what several schemes share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from asfl.config.randomness import random_stream
from asfl.costs.modelled import ExchangeRules
from asfl.costs.round import ALLOWED_BITS, Decision, Round
from asfl.optimize import Problem, solve
from asfl.optimize.rules import PUBLISHED, Switches

Floats = NDArray[np.float64]
T = TypeVar("T")
Values = Mapping[str, object] | tuple[float, float]
"""What a parameter of a scheme may be: what each text stands for, or a number from … to."""
ON_OFF: Values = {"on": True, "off": False}
BITS: Values = {str(bits): bits for bits in sorted(ALLOWED_BITS)}
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

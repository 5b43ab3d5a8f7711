"""What doesn't change in a run, what one round leaves to the next, and how that becomes the tensors of a checkpoint."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import resources
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.costs.round import Decision, Holdings
from asfl.costs.world import Accountant, Budgets, Charge, RemainingBudget, World
from asfl.models.profile import ModelProfile
from asfl.optimize import Learning, Problem, Queues, Rules, next_queues
from asfl.optimize.problem import USUAL_ERROR, DriftAndNoise, ProgressCost, RecentUse, precision_errors
from asfl.runs.records import Fault
from asfl.schemes.base import Scheme, switches_of, watches_noise
from asfl.train.signals import DriftAndNoiseSignals, RoundPlan, Signals, Trained

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


# ---------------------------------------------------------------------- where nothing is trained
@dataclass(frozen=True)
class Drift:
    """How updates are made up."""

    divergence: float
    exponent: float
    lost_update: float = 1.0
    """What a lost update counts, in mean updates since the first round: those of warm-up were larger."""


FITTED = "synthetic_learning.json"


@cache
def fitted_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(resources.files("asfl.runs").joinpath(FITTED).read_text("utf-8"))
    return table


@dataclass(frozen=True, eq=False)
class SyntheticLearning:
    """A stand-in for the learning state, where client sides that drift apart aren't trained.

    Every client's update has the same squared norm, spread over the layers by their number of parameters. Client sides
    drift apart by a power law: after t rounds, with a of N clients arriving in each, the spread of a layer that lies on
    the clients is, in updates,

        divergence · (its share of the parameters) · (1 − 1/N) · (a t / N)^exponent,

    and it is 0 again for every layer that went through the server. The constants are fitted to recorded training, and
    how far played rounds are from trained ones is measured with seeds that weren't fitted to:
    `python -m studies.synthetic_learning` writes both into the file beside this one. It says nothing about accuracy.
    """

    layer_share: Floats = field(metadata={"fixed": True})
    """[M] share of all parameters."""
    layer_spread: Floats
    """[M]"""
    layer_age: Floats
    """[M] rounds since a layer was last averaged, and their sum: drift and debt of `DriftAndNoise`."""
    layer_debt: Floats
    num_clients: int = field(metadata={"fixed": True})
    drift: Drift = field(metadata={"fixed": True})
    weights_per_update: float = field(default=1000.0, metadata={"fixed": True})
    """An assumption, which only the printed objective reads."""
    noise_scale: float = field(default=64.0, metadata={"fixed": True})
    """B in mini-batches: the most that training believes, and what it measures in nearly every round of ours."""

    @classmethod
    def fresh(cls, profile: ModelProfile, num_clients: int, drift: Drift | None = None) -> Self:
        """`drift`: as fitted, unless another one is given."""
        share = profile.param_bits / max(float(profile.param_bits.sum()), 1.0)
        nothing = np.zeros(profile.num_layers)
        return cls(share, nothing, nothing, nothing, num_clients, drift or Drift(**fitted_table()["drift"]))

    def learning(self) -> Learning:
        return Learning(
            layer_spread=self.layer_spread,
            layer_norm2=self.weights_per_update * self.layer_share,
            update_norm2=np.full(self.num_clients, self.drift.lost_update),
            update_scale=1.0,
            beyond=DriftAndNoise(self.layer_age, self.layer_debt, self.noise_scale, precision_errors(USUAL_ERROR)),
        )

    def after(self, cut: int, arrived: NDArray[np.bool_], synced: int = 0) -> Self:
        """The state after a round at this cut with these arrivals, in which so many layers were averaged."""
        layers = np.arange(1, len(self.layer_share) + 1)
        averaged = (layers <= synced) & arrived.any()
        on_clients = (layers <= cut) & ~averaged
        share_arrived = arrived.sum() / self.num_clients
        growth = self.drift.divergence * self.layer_share * share_arrived * (1 - 1 / self.num_clients)
        # The slope of the power law in the middle of this round.
        growth *= self.drift.exponent * (self.layer_age + share_arrived / 2) ** (self.drift.exponent - 1)
        return replace(
            self,
            layer_spread=np.where(on_clients, self.layer_spread + growth, 0.0),
            layer_age=np.where(on_clients, self.layer_age + share_arrived, 0.0),
            layer_debt=np.where(on_clients, self.layer_debt + self.layer_age, 0.0),
        )


# ---------------------------------------------------------------------- the round
@dataclass(frozen=True)
class Measured:
    """What is measured after a round, named as in its record."""

    accuracy: float | None = None
    test_loss: float | None = None
    uncalibrated_accuracy: float | None = None
    client_accuracy: float | None = None
    device_accuracy: list[float | None] | None = None
    gradient: dict[str, float] | None = None
    epsilon: float | None = None
    faults: list[Fault] | None = None


class Learner(Protocol):
    """What learns in a round. The state is the one before the round, but for `measure`."""

    @property
    def cut(self) -> int:
        """Where the networks are split now; 0: nowhere."""

    def begin(self, index: int) -> Bools:
        """A round begins: [N] which clients can take part."""

    def learning(self, state: "State") -> Learning:
        """What the server knows of the learning, to decide by."""

    def resplit(self, plan: RoundPlan) -> float:
        """Stage 1: how far it moved the average model, ‖·‖²."""

    def train(self, plan: RoundPlan) -> Trained:
        """Stages 2 and 3."""

    def measure(self, state: "State", decision: Decision) -> Measured:
        """Scores, gradients, noise and faults after the round, as far as this round's turn has come."""


@dataclass(frozen=True, eq=False)
class Run:
    """What doesn't change in a run."""

    config: Config
    world: World
    scheme: Scheme
    budgets: Budgets
    rules: Rules
    learner: Learner
    accountant: Accountant
    recorded: Sequence[Decision] = field(default=())
    """What ASFL decided round by round in this world, for schemes that borrow from it."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A decision, whose packets arrived in time, and what the round is charged."""

    decision: Decision
    arrived: Bools
    charge: Charge


@dataclass(frozen=True, eq=False)
class State:
    """One goes into a round, the next comes out."""

    round_index: int
    """Of the next round, counted from 0."""
    queues: Queues
    signals: Signals
    """What clients have reported of their updates."""
    synthetic: SyntheticLearning
    """What rounds without training assume instead."""
    reference_drift: SyntheticLearning
    """How far client sides would have drifted apart under ASFL, for schemes that borrow from it."""
    drift_and_noise: DriftAndNoiseSignals | None = None
    """In schemes that decide more than the paper's."""
    previous_cut: int | None = None
    """None before the first round, and with one cut per client."""
    reference_cut: int | None = None
    """The same of ASFL, in schemes that borrow from it."""
    holdings: Holdings | None = None
    """In schemes that bring clients up to date when they take part."""
    rate: ProgressCost = field(default_factory=ProgressCost)
    """What progress has cost so far, in schemes that decide by it."""
    reserves: RemainingBudget | None = None
    """What is left of total budgets; None: there are none."""
    pace: RecentUse | None = None
    """How fast they are used, where there are any."""
    rounds_taken: NDArray[np.int64] | None = None
    """[N] in how many rounds each client took part, where privacy is accounted for."""
    total_delay_s: float = 0.0
    total_energy_j: float = 0.0

    @classmethod
    def fresh(cls, world: World, scheme: Scheme, drift: Drift | None = None, assumed: Drift | None = None) -> "State":
        """Before the first round. `drift`: of client sides that aren't trained; `assumed`: under ASFL."""
        config, clients = world.config, world.config.scenario.clients
        layers, reserves = world.profile.num_layers, RemainingBudget.of(config)
        watched = switches_of(scheme).any or watches_noise(scheme)
        return cls(
            round_index=0,
            queues=Queues.empty(clients),
            signals=Signals.none_yet(clients),
            synthetic=SyntheticLearning.fresh(world.profile, clients, drift),
            reference_drift=SyntheticLearning.fresh(world.profile, clients, assumed),
            drift_and_noise=DriftAndNoiseSignals.none_yet(layers) if watched else None,
            holdings=Holdings.fresh(clients, layers) if scheme.exchange.on_demand else None,
            reserves=reserves,
            pace=None if reserves is None else RecentUse.fresh(clients),
            rounds_taken=np.zeros(clients, dtype=np.int64) if config.privacy.noisy else None,
        )

    def is_last(self, rounds: int) -> bool:
        """Whether no round follows: there were as many as wished, or a total budget is used up."""
        return self.round_index >= rounds or (self.reserves is not None and self.reserves.used_up)

    def learnt(self, problem: Problem, own: Outcome, answering: Outcome, trained: Trained, plan: RoundPlan) -> "State":
        """After a round's training; `answering` is what answers for the budgets."""
        drift, synthetic, watched, known = self.reference_drift, self.synthetic, self.drift_and_noise, problem.learning
        if np.ndim(answering.decision.cut) == 0:
            drift = drift.after(int(answering.decision.cut), answering.arrived)
        if np.ndim(own.decision.cut) == 0:
            synthetic = synthetic.after(int(own.decision.cut), own.arrived, own.decision.synced)
        if watched is not None and known.beyond is not None:
            watched = watched.seen(known.layer_spread)
            watched = watched.after(own.decision, trained, known.beyond.layer_drift, len(own.arrived))
        return replace(
            self,
            signals=self.signals.after(trained),
            synthetic=synthetic,
            reference_drift=drift,
            drift_and_noise=watched,
            rounds_taken=None if self.rounds_taken is None else self.rounds_taken + plan.arrived,
        )

    def charged(self, problem: Problem, own: Outcome, answering: Outcome, in_sync: Bools) -> "State":
        """After a round's costs; `in_sync` [N]: who now has the layers that it needed."""
        decision, charge, rules = own.decision, own.charge, problem.rules
        scheduled = answering.decision.scheduled
        queues = next_queues(problem, float(answering.charge.delay_s), answering.charge.energy_j, scheduled)
        previous_cut, reference_cut, holdings, rate = self.previous_cut, self.reference_cut, self.holdings, self.rate
        if np.ndim(decision.cut) == 0 and decision.scheduled.any():  # else layers stay where they are
            previous_cut = int(decision.cut)
        if answering is not own:
            reference_cut = int(answering.decision.cut) if answering.decision.scheduled.any() else reference_cut
        if holdings is not None and decision.scheduled.any():
            holdings = holdings.after(decision, in_sync, trained=bool(own.arrived.any()))
        beyond = problem.learning.beyond
        if problem.prices is not None and beyond is not None:
            bits = np.broadcast_to(decision.bits, own.arrived.shape)
            drift, deepest = 0.0, int(np.max(decision.cut))
            if problem.switches.sync:  # else nothing that is decided here makes it smaller
                held = beyond.layer_drift[:deepest]
                drift = rules.drift_weight * float(held.sum()) / len(beyond.layer_drift)
            worth = float(beyond.worth(bits[own.arrived]).sum())
            progress = max(
                float(problem.objective.progress_of_cut[deepest] * problem.objective.progress.of(worth)) - drift, 0.0
            )
            rate = rate.after(problem.prices.cost(float(charge.delay_s), charge.energy_j), progress)
        return replace(
            self,
            round_index=self.round_index + 1,
            queues=queues,
            previous_cut=previous_cut,
            reference_cut=reference_cut,
            holdings=holdings,
            rate=rate,
            reserves=self.reserves and self.reserves.after(charge),
            pace=self.pace and self.pace.after(float(charge.delay_s), charge.energy_j),
            total_delay_s=self.total_delay_s + float(charge.delay_s),
            total_energy_j=self.total_energy_j + float(charge.energy_j.sum()),
        )


# ---------------------------------------------------------------------- to and from tensors
def flatten(value: Any, prefix: str = "") -> "dict[str, Tensor]":
    """Every number in a dataclass by its path, such as `queues.delay`; nothing of what is None.

    A field whose metadata says `fixed` follows from the configuration, and is left out.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return {prefix: value}
    if is_dataclass(value) or isinstance(value, Mapping):
        parts = value if isinstance(value, Mapping) else {one.name: getattr(value, one.name) for one in _kept(value)}
        inner = prefix and f"{prefix}."
        return {key: tensor for name, part in parts.items() for key, tensor in flatten(part, inner + name).items()}
    return {} if value is None else {prefix: torch.tensor(np.asarray(value))}


def unflatten(like: T, tensors: "Mapping[str, Tensor]", prefix: str = "") -> T:
    """The dataclass that gave these tensors; `like` is one of the same run, at any round, and gives what is fixed."""
    found: dict[str, Any] = {}
    for one in _kept(like):
        key, before = f"{prefix}.{one.name}" if prefix else one.name, getattr(like, one.name)
        if is_dataclass(before):
            found[one.name] = unflatten(before, tensors, key)
        elif key not in tensors and NoneType in get_args(one.type):
            found[one.name] = None
        elif isinstance(before, np.ndarray):
            found[one.name] = tensors[key].numpy()
        elif before is None or isinstance(before, int | float):
            found[one.name] = tensors[key].item()
        else:  # Tensors from a file begin anywhere. Copies begin on a line of memory, as before; kernels round by that.
            found[one.name] = tensors[key].clone().to(before.device)
    return replace(like, **found)  # type: ignore[type-var]


def arrays_below(prefix: str, tensors: "Mapping[str, Tensor]") -> "dict[str, NDArray[Any]]":
    """By their names behind the prefix."""
    return {name.removeprefix(prefix): t.numpy() for name, t in tensors.items() if name.startswith(prefix)}


def _kept(value: Any) -> "list[Field[Any]]":
    return [one for one in fields(value) if one.init and "fixed" not in one.metadata]

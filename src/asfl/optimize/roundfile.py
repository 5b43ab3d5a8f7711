"""The round file: one round's state and decision as JSON, so that other programs can ask what it costs.

docs/round-file.md describes it; `json_schema()` is its schema. The same file asks for a decision.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from asfl.config import by_name
from asfl.config.channels import Radio
from asfl.config.errors import AsflError
from asfl.config.explain import explain
from asfl.config.fields import Section, is_tiny, too_small
from asfl.config.files import parse_json, read_text
from asfl.config.removed import refuse_removed
from asfl.config.tree import Compute, RoundRules
from asfl.costs.crossing import Overheads
from asfl.costs.decision import Decision, check_decision
from asfl.costs.modelled import RoundCost
from asfl.costs.round import CostEquations, Round
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.optimize import Learning, Problem, Queues, Rules, Solution

Number = Annotated[float, Field(strict=True), Le(1e30)]
NonNegatives = Annotated[list[Annotated[Number, Ge(0)]], MinLen(1)]
Layers = Annotated[list[Annotated[Number, Ge(0)]], MinLen(2)]


class ProfileColumns(Section):
    """A model's layers as numbers, for one sample; all lists have one entry per layer (M)."""

    param_bits: Layers
    """Size of each layer's parameters, in bits."""
    activation_bits: Layers
    """Size of each layer's output, in bits, with everything that crosses a cut behind it."""
    forward_flops: Layers
    """Forward FLOPs (2·MAC)."""
    backward_flops: Layers
    """Backward FLOPs (2·MAC)."""


class RoundCompute(Compute):
    """Processors, and how many samples a round exchanges."""

    charged_samples: Annotated[Number, Gt(0)] = 64
    """Samples each client exchanges in the round: batch size × local steps."""


class RoundClients(Section):
    """One entry per client (N) in every list."""

    path_gain: NonNegatives
    """Mean channel gain, linear."""
    channel_gain: NonNegatives
    """Channel gain in this round, linear."""
    cpu_hz: Annotated[list[Annotated[Number, Gt(0)]], MinLen(1)]
    """Processor speed, in Hz."""


class RoundDecision(Section):
    """What was decided for this round."""

    cut: Annotated[int, Field(strict=True), Ge(1)]
    """Number of layers on the client, 1 … M−1."""
    rb_count: NonNegatives
    """Resource blocks per client; 0: the client sits out."""
    tx_power_w: NonNegatives
    """Transmit power per client, in W."""


class RoundBudgets(Section):
    """What a round may cost on average."""

    delay_s: Annotated[Number, Ge(0)] = 20
    """γ, in s."""
    energy_j: Annotated[Number, Ge(0)] = 0.5
    """δ of each client, in J."""


class RoundQueues(Section):
    """Backlogs of the virtual queues; left out: empty."""

    delay: Annotated[Number, Ge(0)] = 0
    """Of the round's delay."""
    energy: list[Annotated[Number, Ge(0)]] | None = None
    """Of each client's energy."""
    participation: list[Annotated[Number, Ge(0)]] | None = None
    """Of each client's share of rounds."""


class RoundLearning(Section):
    """What the server knows of the models; left out: no spread, every update as large as the mean."""

    layer_spread: list[Annotated[Number, Ge(0)]] | None = None
    """(1/N) Σ_n ‖w̄_m − w_{n,m}‖² of each layer (M)."""
    layer_norm2: list[Annotated[Number, Ge(0)]] | None = None
    """‖w̄_m‖² of each layer (M); used by the printed objective only."""
    update_norm2: list[Annotated[Number, Ge(0)]] | None = None
    """Squared norm of each client's latest update (N)."""
    update_scale: Annotated[Number, Gt(0)] = 1
    """Running mean of the squared norms."""


class RoundFile(RoundRules):
    """One round: what is given, what was decided and, if known, whose packets arrived."""

    profile: Annotated[
        Annotated[str, Tag("name")] | Annotated[ProfileColumns, Tag("columns")],
        Discriminator(lambda value: "name" if isinstance(value, str) else "columns"),
    ]
    """Name of a model such as "vgg19-cifar100" (`asfl list profiles`), or its columns."""
    radio: Radio = Field(default_factory=Radio)
    compute: RoundCompute = Field(default_factory=RoundCompute)
    clients: RoundClients
    fading: Literal["rayleigh", "known"] = "rayleigh"
    """Whether packets fade around path_gain, or meet exactly channel_gain (measured traces)."""
    previous_cut: Annotated[int, Field(strict=True), Ge(1)] | None = None
    """Cut of the round before; left out or null: nothing has to move."""
    budgets: RoundBudgets = Field(default_factory=RoundBudgets)
    queues: RoundQueues = Field(default_factory=RoundQueues)
    learning: RoundLearning = Field(default_factory=RoundLearning)
    outage_s: Annotated[Number, Gt(0)] | None = None
    """A stage ends after this time for whoever isn't done, and its packet is lost; left out: never."""
    min_participants: Annotated[int, Field(strict=True), Ge(0)] | None = None
    """At least this many clients get a resource block; left out: min(N, K)."""
    participation_floor: Annotated[Number, Ge(0), Le(1)] | None = None
    """Long-run share of rounds for each client, 0: off; left out: half of min(1, K/N)."""
    decision: RoundDecision | None = None
    """Needed by `asfl decide --cost`, otherwise ignored."""
    arrived: list[Annotated[int, Ge(0), Le(1)]] | None = None
    """Whose packet arrived, 1 or 0 per client. Given: realised cost; left out: expected cost."""

    @model_validator(mode="after")
    def _nothing_tiny(self) -> Self:
        for name, value in by_name(self.model_dump()).items():
            for number in value if isinstance(value, list) else [value]:
                if is_tiny(number):
                    raise ValueError(f"{name}: {too_small(number)}")
        return self

    @model_validator(mode="after")
    def _one_entry_per_client(self) -> Self:
        count = len(self.clients.cpu_hz)
        lists: dict[str, list[Any] | None] = {
            "clients.path_gain": list(self.clients.path_gain),
            "clients.channel_gain": list(self.clients.channel_gain),
            "arrived": self.arrived,
            "queues.energy": self.queues.energy,
            "queues.participation": self.queues.participation,
            "learning.update_norm2": self.learning.update_norm2,
        }
        if self.decision is not None:
            lists |= {
                "decision.rb_count": self.decision.rb_count,
                "decision.tx_power_w": self.decision.tx_power_w,
            }
        for name, values in lists.items():
            if values is not None and len(values) != count:
                raise ValueError(f"{name} has {len(values)} entries, but there are {count} clients (clients.cpu_hz)")
        return self

    def to_round(self) -> Round:
        clients = self.clients
        return Round(
            profile=self._profile(),
            radio=self.radio,
            compute=self.compute,
            charged_samples=self.compute.charged_samples,
            path_gain=np.array(clients.path_gain, float),
            channel_gain=np.array(clients.channel_gain, float),
            cpu_hz=np.array(clients.cpu_hz, float),
            gain_is_known=self.fading == "known",
            previous_cut=self.previous_cut,
            equations=CostEquations.of(
                self.equations,
                self.uplink_power,
                self.gradient_bits,
                self.resplit_energy,
                Overheads(self.overheads == "charged"),
            ),
            outage_s=np.inf if self.outage_s is None else float(self.outage_s),
        )

    def to_decision(self) -> Decision:
        """The decision, checked against model and radio."""
        if self.decision is None:
            raise AsflError("decision is missing: a cost needs cut, rb_count and tx_power_w")
        decision = Decision(
            cut=self.decision.cut,
            rb_count=np.array(self.decision.rb_count, float),
            tx_power_w=np.array(self.decision.tx_power_w, float),
        )
        check_decision(
            decision,
            num_layers=self._profile().num_layers,
            num_rbs=self.radio.num_rbs,
            max_tx_power_w=self.radio.max_tx_power_w,
        )
        return decision

    def to_problem(self) -> Problem:
        """The decision problem of this round."""
        round_ = replace(self.to_round(), fitted_link=True)
        clients, layers, num_rbs = round_.num_clients, round_.profile.num_layers, self.radio.num_rbs
        learning = self.learning
        for name in ("layer_spread", "layer_norm2"):
            values = getattr(learning, name)
            if values is not None and len(values) != layers:
                raise AsflError(f"learning.{name} has {len(values)} entries, but the model has {layers} layers")
        most = min(clients, num_rbs)
        least = most if self.min_participants is None else self.min_participants
        if least > most:
            raise AsflError(
                f"min_participants = {least} is more than can be served: {clients} clients, {num_rbs} resource blocks"
            )
        return Problem(
            round=round_,
            learning=Learning(
                layer_spread=_filled(learning.layer_spread, layers, 0.0),
                layer_norm2=_filled(learning.layer_norm2, layers, 0.0),
                update_norm2=_filled(learning.update_norm2, clients, float(learning.update_scale)),
                update_scale=float(learning.update_scale),
            ),
            queues=Queues(
                delay=float(self.queues.delay),
                energy=_filled(self.queues.energy, clients, 0.0),
                participation=_filled(self.queues.participation, clients, 0.0),
            ),
            rules=Rules.of(
                self,
                clients,
                num_rbs,
                delay_budget_s=self.budgets.delay_s,
                energy_budget_j=self.budgets.energy_j,
                min_participants=least,
                participation_floor=self.participation_floor,
            ),
        )

    def _profile(self) -> ModelProfile:
        if isinstance(self.profile, str):
            return load_profile(self.profile)
        return ModelProfile.from_json(self.profile.model_dump())


def read_round_file(path: Path) -> RoundFile:
    """Read and validate a round file; every mistake is named with its field."""
    return parse_round(parse_json(read_text(path), str(path)))


def parse_round(data: Any) -> RoundFile:
    """Validate a round that was read from JSON."""
    if not isinstance(data, dict):
        raise AsflError("a round file is a JSON object with the keys profile, clients, decision, …")
    refuse_removed(f"decision.{key}" for key in data)
    try:
        return RoundFile.model_validate(data)
    except ValidationError as error:
        raise AsflError(explain(error, RoundFile)) from None


def json_schema() -> dict[str, Any]:
    """JSON Schema of the round file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RoundFile.model_json_schema()}


def cost_as_json(cost: RoundCost, realised: bool) -> dict[str, Any]:
    """A cost with plain numbers; infinite delays (a link without power or gain) become null, as JSON has no ∞."""
    totals = ("delay_s", "resplit_delay_s", "uplink_stage_delay_s", "server_stage_delay_s", "energy_j")
    links = ("packet_error_rate", "uplink_rate_bps", "downlink_rate_bps")
    delay_parts = ("client_forward", "uplink", "server", "downlink", "client_backward")
    energy_parts = ("resplit", "client_forward", "uplink", "client_backward")
    parts = {"resplit_delay_s": cost.resplit_delay_by_client_s}
    parts |= {f"{part}_delay_s": getattr(cost, f"{part}_delay_s") for part in delay_parts}
    parts |= {f"{part}_energy_j": getattr(cost, f"{part}_energy_j") for part in energy_parts}
    return {
        "kind": "realised" if realised else "expected",
        **{name: _plain(getattr(cost, name)) for name in (*totals, *links)},
        "parts": {name: _plain(values) for name, values in parts.items()},
    }


def solution_as_json(solution: Solution) -> dict[str, Any]:
    """A solver's answer with plain numbers."""
    decision = solution.decision
    counts = decision.rb_count.tolist()
    bound = solution.lower_bound
    return {
        "cut": int(decision.cut),
        "rb_count": [int(count) if count == int(count) else count for count in counts],
        "tx_power_w": decision.tx_power_w.tolist(),
        "objective": solution.objective,
        "feasible": solution.feasible,
        "missed_budgets": solution.missed_budgets(),
        "expected": cost_as_json(solution.expected, realised=False),
        "iterations": solution.iterations,
        "trace": [{"block": block, "objective": value} for block, value in solution.trace],
        "lower_bound_on_grid": bound if np.isfinite(bound) else None,
        "seconds": solution.seconds,
    }


def _filled(values: list[float] | None, length: int, default: float) -> NDArray[np.float64]:
    return np.full(length, default) if values is None else np.array(values, float)


def _plain(values: Any) -> Any:
    listed = np.asarray(values).tolist()
    if isinstance(listed, list):
        return [value if np.isfinite(value) else None for value in listed]
    return listed if np.isfinite(listed) else None

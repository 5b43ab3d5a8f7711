"""The round file: a decision problem as JSON, so that other programs can ask what a round costs, or for a decision.

The file is the `Problem`: what it leaves out is as in a run. docs/decision.md describes it, `json_schema()` is its
schema.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from asfl.config.errors import AsflError
from asfl.config.fields import explain
from asfl.config.files import parse_json, read_text
from asfl.config.shapes import Each
from asfl.costs.modelled import RoundCost, round_cost
from asfl.costs.round import CostEquations, Decision, check_decision
from asfl.costs.world import budgets_of_round
from asfl.optimize.problem import Problem, Rules, Solution


@dataclass(frozen=True, eq=False)
class RoundFile(Problem):
    """A problem; if known, what was decided and whose packets arrived."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
    decision: Decision | None = None
    """Needed by `asfl decide --cost`, otherwise ignored."""
    arrived: Annotated[NDArray[np.int64], Each(Annotated[int, Ge(0), Le(1)])] | None = None
    """Whose packet arrived, 1 or 0 per client. Given: realised cost; left out: expected cost."""

    def cost(self) -> RoundCost:
        """What the decision costs, on the link as it is."""
        if self.decision is None:
            raise AsflError("decision is missing: a cost needs cut, rb_count and tx_power_w")
        round_ = replace(self.round, fitted_link=False)
        check_decision(self.decision, round_.profile.num_layers, round_.radio.num_rbs, round_.radio.max_tx_power_w)
        return round_cost(round_, self.decision, self.arrived, self.exchange)


FROM_RULES = ("equations", "outage_s", "fitted_link")
"""Fields of a round that a file leaves out."""


@cache
def _adapter() -> TypeAdapter[RoundFile]:
    return TypeAdapter(RoundFile)


def read_round_file(path: Path) -> RoundFile:
    """Read and validate a round file; every mistake is named with its field."""
    return parse_round(parse_json(read_text(path), str(path)))


def parse_round(data: Any) -> RoundFile:
    """Validate a round that was read from JSON."""
    if not isinstance(data, dict):
        raise AsflError("a round file is a JSON object with the keys round, rules, queues, decision, …")
    try:
        given = _adapter().validate_python(data)
    except ValidationError as error:
        raise AsflError(explain(error, RoundFile)) from None
    round_ = replace(given.round, equations=CostEquations.of(given.rules), fitted_link=True)
    _check_lengths(given)
    budgets = budgets_of_round(round_, given.rules)
    return replace(
        given,
        round=replace(round_, outage_s=budgets.outage_s),
        rules=Rules.of(given.rules, round_.num_clients, round_.radio.num_rbs, budgets, given.switches),
    )


def as_json(problem: Problem) -> dict[str, Any]:
    """What `parse_round` reads as this problem; for a `RoundFile`, with what was decided."""
    given = {field.name: getattr(problem, field.name) for field in fields(problem)}
    data = _adapter().dump_python(
        RoundFile(**given),
        mode="json",
        exclude={"round": {*FROM_RULES}, "rules": {"relative_floor"}},
    )
    if problem.rules.relative_floor:
        data["rules"]["participation_floor"] = "auto"
    return {key: value for key, value in data.items() if value is not None}


def json_schema() -> dict[str, Any]:
    """JSON Schema of the round file."""
    schema = _adapter().json_schema()
    for name in FROM_RULES:
        del schema["$defs"]["Round"]["properties"][name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _check_lengths(given: RoundFile) -> None:
    round_ = given.round
    lengths = {"clients": round_.num_clients, "layers": round_.profile.num_layers, "blocks": round_.radio.num_rbs}
    for name, array, axes in _arrays(given):
        for axis, length in zip(axes, np.shape(array), strict=False):
            if length != lengths[axis]:
                raise AsflError(f"{name} has {length} entries, but there are {lengths[axis]} {axis}")


def _arrays(part: Any, path: str = "") -> Iterator[tuple[str, Any, list[str]]]:
    """Name, value and axes of every array in a part of a problem."""
    hints = get_type_hints(type(part), include_extras=True)
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from _arrays(value, f"{path}{field.name}.")
        elif value is not None:
            yield from ((path + field.name, value, each.axes.split()) for each in _each_in(hints[field.name]))


def _each_in(hint: Any) -> Iterator[Each]:
    yield from (found for found in getattr(hint, "__metadata__", ()) if isinstance(found, Each))
    for argument in get_args(hint):
        yield from _each_in(argument)


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
    bound = solution.lower_bound
    return {
        "cut": int(decision.cut),
        "rb_count": [int(count) for count in decision.rb_count],
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


def _plain(values: Any) -> Any:
    listed = np.asarray(values).tolist()
    if isinstance(listed, list):
        return [value if np.isfinite(value) else None for value in listed]
    return listed if np.isfinite(listed) else None

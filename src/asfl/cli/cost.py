"""`asfl cost`: what one round costs."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from asfl.cli import options
from asfl.cli.output import console, print_json, table
from asfl.config.errors import AsflError
from asfl.config.units import format_si
from asfl.costs.decision import Decision
from asfl.costs.modelled import RoundCost
from asfl.optimize.roundfile import cost_as_json, json_schema, read_round_file


def cost(
    file: Annotated[Path | None, typer.Argument(help="A round file (docs/round-file.md).")] = None,
    as_json: options.Json = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of round files.")] = False,
) -> None:
    """Delay and energy of the decision in a round file: realised if it says who arrived, else expected."""
    if schema:
        options.refuse_all_but(["schema", "as_json"], "--schema prints the schema and reads no file")
        print_json(json_schema())
        return
    if file is None:
        raise AsflError("which round? For example: asfl cost round.json (asfl cost --schema says what is in it)")
    given = read_round_file(file)
    result, realised = given.cost(), given.arrived is not None
    if as_json:
        print_json(cost_as_json(result, realised=realised))
    elif given.decision is not None:
        _print_tables(result, given.decision, given.round.previous_cut, realised=realised)


def _print_tables(result: RoundCost, decision: Decision, previous_cut: int | None, *, realised: bool) -> None:
    kind = "realised" if realised else "expected"
    before = "" if previous_cut is None else f" (before: {previous_cut})"
    out = console()
    out.print(
        f"[bold]{kind} delay {format_si(float(result.delay_s), 's')}[/], cut {decision.cut}{before}: "
        f"re-split {format_si(float(result.resplit_delay_s), 's')} + "
        f"uplink stage {format_si(float(result.uplink_stage_delay_s), 's')} + "
        f"server stage {format_si(float(result.server_stage_delay_s), 's')}"
    )
    columns = {
        "client": [str(client) for client in range(len(decision.rb_count))],
        "RBs": [f"{count:g}" for count in decision.rb_count],
        "power": [format_si(power, "W") for power in decision.tx_power_w],
        "error rate": [f"{100 * rate:.2f} %" for rate in result.packet_error_rate],
        "uplink": [format_si(rate, "bit/s") for rate in result.uplink_rate_bps],
        "downlink": [format_si(rate, "bit/s") for rate in result.downlink_rate_bps],
        "re-split": _seconds(result.resplit_delay_by_client_s),
        "forward": _seconds(result.client_forward_delay_s),
        "send": _seconds(result.uplink_delay_s),
        "server": _seconds(result.server_delay_s),
        "receive": _seconds(result.downlink_delay_s),
        "backward": _seconds(result.client_backward_delay_s),
        "energy": [format_si(energy, "J") for energy in result.energy_j],
    }
    out.print(table(list(columns), zip(*columns.values(), strict=True)))
    silent = np.flatnonzero(decision.scheduled & ~np.isfinite(result.uplink_delay_s))
    if silent.size:
        out.print(f"client {silent[0]} has resource blocks but no power or no gain, so the round never ends")


def _seconds(delays: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[str]:
    return [format_si(delay, "s") for delay in delays]

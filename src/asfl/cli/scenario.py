"""`asfl scenario`: a picture of the world."""

from rich.table import Table

from asfl.budgets import resolve_budgets
from asfl.cli.options import JsonOption, PlotOption, PresetArgument, SetOption, console, print_json
from asfl.config import load_config
from asfl.report.figure import check_figure_path, save_figure
from asfl.report.world import WorldView, draw_world
from asfl.units import format_si
from asfl.world import World


def scenario(
    preset: PresetArgument = "demo",
    overrides: SetOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Who is where, and what each cut would cost a good, a median and a bad client."""
    if plot is not None:
        check_figure_path(plot)
    world = World.of(load_config(preset, overrides or []).config)
    view = WorldView.of(world, resolve_budgets(world))
    if plot is not None:
        save_figure(draw_world(view), plot)
    if as_json:
        print_json(_as_json(view))
        return
    _print_table(view)
    if plot is not None:
        print(f"picture: {plot}")


def _as_json(view: WorldView) -> dict[str, object]:
    clients = view.world.clients
    measured = view.world.config.scenario.channel.kind == "trace"
    return {
        "profile": view.world.profile.name,
        "budgets": {"delay_s": view.budgets.delay_s, "energy_j": view.budgets.energy_j},
        "clients": {
            "distance_m": None if measured else clients.distance_m.tolist(),
            "mean_snr_db": view.mean_snr_db.tolist(),
            "cpu_hz": clients.cpu_hz.tolist(),
        },
        "delay_s": view.delay_s.T.tolist(),
        "energy_j": view.cost.energy_j.T.tolist(),
    }


def _print_table(view: WorldView) -> None:
    clients, cuts = view.world.clients, view.world.profile.cuts
    measured = view.world.config.scenario.channel.kind == "trace"
    table = Table(
        title=f"{view.world.profile.name}: each client by itself, at its mean gain, full power, a fair RB share",
        header_style="bold",
    )
    for name in (
        "client",
        "distance",
        "mean SNR",
        "CPU",
        "fastest cut",
        "thriftiest cut",
        "cuts within both budgets",
    ):
        table.add_column(name, justify="right")
    for client in range(len(clients.cpu_hz)):
        fastest, thriftiest = view.delay_s[:, client].argmin(), view.cost.energy_j[:, client].argmin()
        within = view.cuts_within_budgets(client)
        table.add_row(
            str(client),
            "measured" if measured else f"{clients.distance_m[client]:.0f} m",
            f"{view.mean_snr_db[client]:.1f} dB",
            format_si(clients.cpu_hz[client], "Hz"),
            f"{cuts[fastest]} ({format_si(view.delay_s[fastest, client], 's')})",
            f"{cuts[thriftiest]} ({format_si(view.cost.energy_j[thriftiest, client], 'J')})",
            _ranges(within.tolist()) or "none",
        )
    out = console()
    out.print(table)
    out.print(
        f"budgets per round: {format_si(view.budgets.delay_s, 's')} for the round, "
        f"{format_si(view.budgets.energy_j, 'J')} for each client"
    )


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as "1–3, 7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)

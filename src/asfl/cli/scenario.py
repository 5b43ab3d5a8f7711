"""`asfl scenario`: a picture of the world."""

from rich.console import Console

from asfl.cli import options
from asfl.cli.output import show, table
from asfl.config.units import format_si
from asfl.costs.world import World, resolve_budgets
from asfl.results.charts.world import WorldView, world_chart
from asfl.results.summary import trained_and_charged


def scenario(
    preset: options.Preset = "demo",
    seed: options.Seed = None,
    overrides: options.Set = None,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Who is where, and what each cut would cost a good, a median and a bad client."""
    world = World.of(options.configuration(preset, overrides, seed=seed).config)
    view = WorldView.of(world, resolve_budgets(world))
    show(
        as_json,
        plot,
        data=lambda: _as_json(view),
        tables=lambda out: _print_table(view, out),
        figure=lambda: world_chart(view),
    )


def _as_json(view: WorldView) -> dict[str, object]:
    clients = view.world.clients
    measured = view.world.config.scenario.channel.kind == "trace"
    return {
        "profile": view.world.profile.name,
        "model": trained_and_charged(view.world.config) or view.world.profile.name,
        "budgets": {"delay_s": view.budgets.delay_s, "energy_j": view.budgets.energy_j},
        "clients": {
            "distance_m": None if measured else clients.distance_m.tolist(),
            "mean_snr_db": view.mean_snr_db.tolist(),
            "cpu_hz": clients.cpu_hz.tolist(),
        },
        "delay_s": view.delay_s.T.tolist(),
        "energy_j": view.cost.energy_j.T.tolist(),
    }


def _print_table(view: WorldView, out: Console) -> None:
    clients, cuts = view.world.clients, view.world.profile.cuts
    measured = view.world.config.scenario.channel.kind == "trace"
    columns = ("client", "distance", "mean SNR", "CPU", "fastest cut", "thriftiest cut", "cuts within both budgets")
    rows = []
    for client in range(len(clients.cpu_hz)):
        fastest, thriftiest = view.delay_s[:, client].argmin(), view.cost.energy_j[:, client].argmin()
        rows.append(
            (
                str(client),
                "measured" if measured else f"{clients.distance_m[client]:.0f} m",
                f"{view.mean_snr_db[client]:.1f} dB",
                format_si(clients.cpu_hz[client], "Hz"),
                f"{cuts[fastest]} ({format_si(view.delay_s[fastest, client], 's')})",
                f"{cuts[thriftiest]} ({format_si(view.cost.energy_j[thriftiest, client], 'J')})",
                _ranges(view.cuts_within_budgets(client).tolist()) or "none",
            )
        )
    model = trained_and_charged(view.world.config) or view.world.profile.name
    title = f"{model}: each client by itself, at its mean gain, full power, a fair RB share"
    out.print(table(columns, rows, title=title))
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

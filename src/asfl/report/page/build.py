"""The whole page: sections that have something to show, the numbers behind the charts, and the script that draws."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from asfl._version import __version__
from asfl.errors import MissingExtraError
from asfl.report.page import charts, sections
from asfl.report.page.charts import Json
from asfl.report.page.collect import Collected, collect
from asfl.report.page.origins import label_mixes, mix_key, profile_of
from asfl.report.page.sections import Section, chart, choice
from asfl.report.page.tables import Table, tables_of
from asfl.summary import OURS, Run, Summary

PLOTLY_PATH = "plotly.js"
"""Where a served page finds the chart library; a file carries it inside."""


@dataclass(frozen=True)
class Report:
    """What was read, and its numbers: all that page, figures and LaTeX tables are made from."""

    collected: Collected
    summaries: Sequence[Summary]
    """One per world."""

    @classmethod
    def of(cls, folders: Sequence[Path], targets: Sequence[float] | None = None) -> "Report":
        collected = collect(folders)
        return cls(collected, [world.summary(targets) for world in collected.worlds])

    def tables(self) -> list[tuple[str, list[Table]]]:
        """By world."""
        pairs = zip(self.collected.worlds, self.summaries, strict=True)
        return [(world.title, tables_of(summary)) for world, summary in pairs if summary.runs]

    def runs(self) -> list[tuple[Summary, list[Run]]]:
        """By world: the runs behind the numbers."""
        pairs = zip(self.collected.worlds, self.summaries, strict=True)
        return [(summary, [run.as_run() for run in world.counted]) for world, summary in pairs if summary.runs]


_LEGEND = '<div class="legend" role="group" aria-label="schemes shown" data-legend></div>'
"""Filled by the script: buttons that switch schemes off and on, in all charts at once."""


def chart_library() -> str:
    """The script that draws; it makes no requests."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("the report", "report") from None
    return str(get_plotlyjs())


def page(report: Report, *, data_dir: Path | None = None, version: str = "", library: str | None = None) -> str:
    """One HTML file. With a `version` it is a served page, which asks for newer ones and loads the library apart."""
    collected = report.collected
    mixes, mix_notes = label_mixes(collected.runs, data_dir)
    data, profile_notes = _data(report, mixes)
    parts = _sections(report, data)
    values = {
        "title": escape(f"{collected.title} – ASFL report"),
        "heading": escape(collected.title),
        "version": escape(version),
        "connect": "'self'" if version else "'none'",
        "script": "'self' 'unsafe-inline'" if version else "'unsafe-inline'",
        "nav": "".join(f'<a href="#{part.key}">{escape(part.title)}</a>' for part in parts),
        "headline": sections.headline(collected, report.summaries),
        "notes": sections.notes_html([*collected.notes, *mix_notes, *profile_notes]),
        "sections": "".join(part.html() for part in parts),
        "data": _as_script(data),
        "style": _file("style.css"),
        "program": _file("page.js"),
        "library": f'<script src="{PLOTLY_PATH}"></script>'
        if version
        else f"<script>{library or chart_library()}</script>",
        "asfl": escape(__version__),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _file("template.html"))


def _as_script(data: Json) -> str:
    """JSON that can't end the script it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("asfl") / "report" / "page" / name).read_text("utf-8")


def _data(report: Report, mixes: Json) -> tuple[Json, list[str]]:
    collected = report.collected
    profiles, notes = [], []
    for world in collected.worlds:
        profile, why = profile_of(world)
        if profile is not None:
            profiles.append({"world": world.title, **profile})
        elif why not in notes:
            notes.append(why)
    pairs = list(zip(collected.worlds, report.summaries, strict=True))
    bars = [{"world": world.title, **found} for world, summary in pairs if (found := charts.bars(world, summary))]
    columns = charts.map_columns(collected.runs)
    runs = [
        {
            **charts.one_run(run, f"{world.series(run.scheme)} seed {run.seed}", world.series(run.scheme), columns),
            "mix": key if (key := mix_key(run.manifest.config)) in mixes else None,
        }
        for world in collected.worlds
        for run in world.runs
    ]
    first = next((n for n, run in enumerate(collected.runs) if run.scheme == OURS and run.records), 0)
    data = {
        "styles": charts.styles(collected),
        "accuracy": charts.accuracy(collected),
        "bars": bars,
        "discrepancy": charts.discrepancies(collected),
        "losses": charts.losses(collected),
        "runs": runs,
        "first": first,
        "mixes": mixes,
        "profiles": profiles,
    }
    return data, notes


def _sections(report: Report, data: Json) -> list[Section]:
    """Those with something to show, in the order of the page."""
    collected = report.collected
    played = any(run.records for run in collected.runs)
    found = [
        (data["accuracy"] is not None, _accuracy()),
        (bool(data["bars"]), _way_to(data)),
        (any(summary.runs for summary in report.summaries), _tables(report)),
        (played, _run(data)),
        (bool(data["discrepancy"]), _discrepancy()),
        (bool(data["losses"]), _losses()),
        (bool(data["profiles"]), _layers(data)),
        (played, _theory(collected)),
        (True, _origins(collected)),
    ]
    return [section for shown, section in found if shown]


def _accuracy() -> Section:
    controls = choice("axis", "against", {"delay": "Seconds", "energy": "Joules", "rounds": "Rounds"})
    controls += choice("scale", "scale of the horizontal axis", {"linear": "Linear", "log": "Log"})
    drawn = chart(
        "chart-accuracy", "Accuracy of the average model of every scheme; the tables have the numbers", "tall"
    )
    return Section(
        "accuracy",
        "Accuracy",
        "How far the average model got for the time, the energy or the rounds it took (mean of 3 evaluations). Bands "
        "reach from the lowest to the highest seed; dotted horizontal lines are the targets; thin lines are unfinished "
        "runs. A name switches its scheme off and on.",
        f'<div class="controls">{controls}</div>{_LEGEND}{drawn}',
    )


def _way_to(data: Json) -> Section:
    parts = []
    for number, bars in enumerate(data["bars"]):
        options = {str(index): target["label"] for index, target in enumerate(bars["targets"])}
        rows = max(len(target["rows"]) for target in bars["targets"])
        size = "bars-one" if rows <= 2 else "bars-few" if rows <= 4 else "bars-some" if rows <= 8 else "bars-many"
        title = f"<h3>{escape(bars['world'])}</h3>" if bars["world"] else ""
        parts.append(
            f'{title}<div class="controls">{choice(f"target-{number}", "target accuracy", options)}</div>'
            f'<div class="pair">{chart(f"chart-delay-{number}", "Delay to the target by scheme", size)}'
            f"{chart(f'chart-energy-{number}', 'Energy to the target by scheme', size)}</div>"
        )
    return Section(
        "targets",
        "Way to a target",
        "Delay, and energy of all clients together, until a target accuracy is reached; the fastest on top.",
        "".join(parts),
    )


def _tables(report: Report) -> Section:
    return Section(
        "tables",
        "Tables",
        "The numbers of asfl compare.",
        sections.tables(report.collected, report.summaries),
    )


def _run(data: Json) -> Section:
    options = "".join(
        f'<option value="{index}"{" selected" if index == data["first"] else ""}>{escape(run["label"])}</option>'
        for index, run in enumerate(data["runs"])
    )
    maps = choice(
        "map",
        "what the map shows",
        {"rbs": "Blocks", "power": "Power", "errors": "Packet errors", "energy": "Energy", "queue": "Energy queues"}
        | ({"uplink": "Uplink"} if any("uplink" in run["maps"] for run in data["runs"]) else {}),
    )
    small = "".join(
        chart(key, description)
        for key, description in (
            ("chart-cut", "Cut, round by round"),
            ("chart-round-delay", "Delay of every round, and the budget"),
            ("chart-delay-queue", "Delay queue, round by round"),
            ("chart-energy-queue", "Energy queues, round by round"),
            ("chart-round-energy", "Energy of a client in every round, and the budget"),
            ("chart-lost", "Packets lost in every round, expected and realised"),
            ("chart-client-energy", "Mean energy of every client, and the budget"),
            *((("chart-mix", "Label mix of every client"),) if data["mixes"] else ()),
        )
    )
    return Section(
        "run",
        "Inside a run",
        "Every decision of one run: where the model was cut, who got resource blocks at what power, and how delay and "
        "energy stood against their budgets. FedAvg, SL and SFL borrow ASFL's blocks and power, and the queues with "
        "them.",
        f'<div class="controls"><label>Run <select data-run>{options}</select></label>{maps}</div>'
        f'{chart("chart-map", "Map of clients and rounds", "map")}<div class="pair">{small}</div>',
    )


def _discrepancy() -> Section:
    controls = choice("drift", "quantity", {"discrepancy": "Discrepancy", "spread": "Spread"})
    controls += choice("drift-scale", "scale of the vertical axis", {"linear": "Linear", "log": "Log"})
    drawn = chart("chart-discrepancy", "Discrepancy by scheme and round")
    return Section(
        "discrepancy",
        "Discrepancy",
        "Discrepancy is what ASFL keeps small: how far client sides have drifted apart, plus the share of updates "
        "expected to be lost, in units of one update. Spread is the first part alone, in squared weights. Schemes that "
        "average their client sides every round have none.",
        f'<div class="controls">{controls}</div>{_LEGEND}{drawn}',
    )


def _losses() -> Section:
    return Section(
        "losses",
        "Packet errors",
        "Share of the packets sent that were lost: as the channel had it expected, and as it came.",
        chart("chart-losses", "Expected and realised packet errors by scheme"),
    )


def _layers(data: Json) -> Section:
    parts = []
    for number, profile in enumerate(data["profiles"]):
        title = profile["title"] + (f" ({profile['world']})" if profile["world"] else "")
        size = "bars-few" if len(profile["cuts"]) <= 6 else "bars-many"
        parts.append(
            f'<h3>{escape(title)}</h3><div class="pair">'
            f"{chart(f'chart-bits-{number}', 'Bits of parameters and activations of every layer')}"
            f"{chart(f'chart-flops-{number}', 'Work of every layer')}</div>"
            + (chart(f"chart-cuts-{number}", "Where each scheme cut, share of rounds", size) if profile["cuts"] else "")
        )
    return Section(
        "layers",
        "Layers and cuts",
        "What every layer weighs: parameters move when the cut moves, activations of the client's last layer cross the "
        "link for every sample. Below: how often each scheme cut behind each layer.",
        "".join(parts),
    )


def _theory(collected: Collected) -> Section:
    parts = [sections.theory(world, run) for world in collected.worlds for run in world.runs]
    body = "".join(f'<div data-of-run="{index}">{part}</div>' for index, part in enumerate(parts))
    return Section(
        "theory",
        "Bounds",
        "What the paper's lemmas and theorems promise of the run chosen above, and what came. A bound that holds for "
        "any algorithm says nothing, and is said to.",
        body,
    )


def _origins(collected: Collected) -> Section:
    return Section(
        "origins",
        "Where it comes from",
        "The commands that make these runs again, the versions they were made with, and every field of the "
        "configuration. Another number of threads may round differently.",
        sections.commands(collected) + sections.versions(collected) + sections.configuration(collected),
    )

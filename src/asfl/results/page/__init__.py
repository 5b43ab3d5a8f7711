"""The whole page: what the template shows, the charts as JSON beside it, and the script that draws them."""

import json
import logging
import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from asfl._version import __version__
from asfl.config import by_name
from asfl.config.errors import AsflError, MissingExtraError
from asfl.config.show import own_settings
from asfl.config.tree import DELTA
from asfl.config.units import format_si, number, percent
from asfl.results.charts import runs
from asfl.results.charts.chart import Panel, lines_panel, look_of
from asfl.results.charts.plotly import TEMPLATE, Json, figure
from asfl.results.charts.timeline import timeline_panel
from asfl.results.curves import Curve, RunFolder
from asfl.results.page.bounds import bounds_of, queue_bounds
from asfl.results.page.collect import Collected, collect
from asfl.results.recorded import timelines
from asfl.results.summary import Summary, trained_and_charged
from asfl.results.tables import CURVE_AXES, Table, in_words, tables_of
from asfl.schemes import CEILING, OURS

_log = logging.getLogger(__name__)
PLOTLY_PATH = "plotly.js"
"""Where a served page finds the chart library; a file carries it inside."""
MOST_ROUNDS, MOST_BANDS = 60, 2_400
"""How many timelines of a run there are, and how many clients in all of the page: about 1 MB."""
_FACTS = ("asfl", "python", "torch", "numpy", "platform", "git_commit", "started")
"""Shown; where the data lay on a disk is private."""


@dataclass(frozen=True)
class Report:
    """What was read, and its numbers: all that page, figures and LaTeX tables are made from."""

    collected: Collected
    summary: Summary
    tables: Sequence[Table]

    @classmethod
    def of(cls, folders: Sequence[Path], targets: Sequence[float] | None = None) -> "Report":
        collected = collect(folders)
        summary = Summary.of(collected.counted, targets)
        return cls(collected, summary, tables_of(summary) if summary.runs else [])


def place_for(folders: Sequence[Path], wanted: Path | None) -> Path:
    """Where a page goes: as wanted, else `report.html` in the folder it is about, or here if it is about several.

    Refused if another file than an earlier report is there.
    """
    place = wanted or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if place.is_dir():
        raise AsflError(f"--out {place} is a folder; give a file name, such as {place / 'report.html'}")
    if place.suffix.lower() not in (".html", ".htm"):
        raise AsflError(f"--out {place}: the page is HTML, so its name ends in .html; PDF and SVG figures go beside it")
    if place.exists() and not _is_report(place):
        raise AsflError(f"{place} exists and isn't a report of asfl; give --out another name")
    return place


def _is_report(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return b"ASFL report</title>" in content.read(8192)
    except OSError:
        return False


def chart_library() -> str:
    """The script that draws; it makes no requests."""
    try:
        import jinja2  # noqa: F401 - missing before anything is read, not after
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("the report", "report") from None
    return str(get_plotlyjs())


def page(report: Report, *, version: str = "", library: str | None = None) -> str:
    """One HTML file. With a `version` it is a served page, which asks for newer ones and loads the library apart."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtraError("the report", "report") from None

    def file(name: str) -> Markup:
        return Markup((resources.files(__package__) / "templates" / name).read_text("utf-8"))

    drawn = _Drawn(report)
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(
        report=report,
        collected=report.collected,
        drawn=drawn,
        data=Markup(_as_script(drawn.data)),
        facts=_facts(report.collected),
        sentences=_sentences(report),
        bounds={label: bounds_of(run, _beside(report.collected, run)) for label, run in drawn.inside.items()},
        charged=trained_and_charged(report.collected.config),
        versions=_versions(report.collected),
        fields=_fields(report.collected),
        version=version,
        library=Markup("" if version else chart_library() if library is None else library),
        plotly_path=PLOTLY_PATH,
        style=file("style.css"),
        program=file("page.js"),
        asfl=__version__,
    )


def _as_script(data: Json) -> str:
    """JSON that can't end the script it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Drawn:
    """All charts, by the id of their place and the choice under which they are shown; and what can be chosen."""

    def __init__(self, report: Report) -> None:
        collected, summary = report.collected, report.summary
        self.charts, self.chosen = dict[str, dict[str, Json]](), {"axis": "delay", "map": "rbs"}
        self.labels = _labels(collected)
        self.inside = {label: run for label, run in self.labels.items() if not run.is_ceiling}
        self.maps = {name: runs.MAPS[name][0] for run in self.inside.values() for name in runs.maps_of(run)}
        every = list(_learnt(collected))
        for axis in CURVE_AXES if every else ():
            costs = collected.costs if axis == "delay" else ""
            panel = runs.accuracy_panel(every, axis, summary.targets, unit=costs)
            self._put("chart-accuracy", panel, axis, legend=True)
        self.targets, self.rows = {percent(target): percent(target) for target in summary.targets}, _size(summary.runs)
        if (main := summary.main_target()) is not None:
            self.chosen["target"] = percent(main)
        for target in summary.targets:
            self._put("chart-delay", runs.way_panel(summary, target, "delay_s"), percent(target))
            self._put("chart-energy", runs.way_panel(summary, target, "energy_j"), percent(target))
        self._inside(collected)
        self.rounds = {label: drawn for label, run in self.inside.items() if (drawn := self._rounds(label, run))}
        counted = {
            scheme: [run for run in collected.counted if run.scheme == scheme]
            for scheme in collected.schemes
            if scheme != CEILING
        }
        means = runs.means_over_runs(counted, lambda record: record.discrepancy)
        self._put("chart-discrepancy", lines_panel("", "discrepancy, updates", means), legend=True)
        first = runs.first_of_each([run for run in collected.runs if not run.is_ceiling])
        self.strips = _size(first)
        if first:
            self._put("chart-cuts", runs.cuts_panel(first))

    @property
    def data(self) -> Json:
        return {"charts": self.charts, "chosen": self.chosen, "rounds": self.rounds, "template": TEMPLATE}

    def _put(self, place: str, panel: Panel, key: str = "", *, legend: bool = False) -> None:
        if panel.series:
            self.charts.setdefault(place, {})[key] = figure(panel, legend=legend)

    def _inside(self, collected: Collected) -> None:
        columns = runs.map_columns(collected.runs)
        first = next((label for label, run in self.labels.items() if run.scheme == OURS and run.records), None)
        self.chosen["run"] = first or next(iter(self.inside), "")
        for label, run in self.inside.items():
            for name, panel in runs.panels(run, look_of(run.scheme).color, queue_bounds(run)).items():
                self._put(f"chart-{name}", panel, label)
            for name in runs.maps_of(run) if run.records else ():
                self._put("chart-map", runs.client_map(run, name, columns), f"{label}|{name}")

    def _rounds(self, label: str, run: RunFolder) -> list[int]:
        """The timelines of some rounds, evenly spread; which these are. None where the world can't be set up again."""
        clients = run.manifest.config.scenario.clients
        most = max(2, min(MOST_ROUNDS, MOST_BANDS // (len(self.inside) * clients)))
        places = np.unique(np.linspace(0, len(run.records) - 1, most).round().astype(int)) if run.records else ()
        found = []
        try:
            for met, timeline in timelines(run, {run.records[place].round for place in places}):
                number = met.record.round
                panel = timeline_panel(timeline, f"Round {number}: {format_si(timeline.delay_s, 's')}")
                self._put("chart-timeline", panel, f"{label}|{number}", legend=True)
                found.append(number)
        except AsflError as error:  # its trace isn't here, or its plugin isn't loaded
            _log.info("no timelines of %s: %s", label, error)
        return found


def _size(rows: Sized) -> str:
    count = len(rows)
    return "bars-one" if count <= 2 else "bars-few" if count <= 4 else "bars-some" if count <= 8 else "bars-many"


def _learnt(collected: Collected) -> Iterator[runs.Learnt]:
    """Finished seeds together, unfinished runs one by one."""
    for scheme in collected.schemes:
        look = look_of(scheme)
        known = [(run, curve) for run in collected.runs if run.scheme == scheme and (curve := _finite(run)).accuracy]
        done = [curve for run, curve in known if run.finished]
        if done:
            yield runs.Learnt(scheme, scheme, done, look)
        for run, curve in known:
            if not run.finished:
                thin = replace(look, width=1, opacity=0.75)
                name = f"{scheme} seed {run.seed}, {len(run.records)} of {run.rounds} rounds"
                yield runs.Learnt(scheme, name, [curve], thin, ends=False)


def _finite(run: RunFolder) -> Curve:
    """Its evaluations up to a dead link."""
    return Curve.of(r for r in run.records if math.isfinite(r.total_delay_s) and math.isfinite(r.total_energy_j))


def _labels(collected: Collected) -> dict[str, RunFolder]:
    """Every run under a name of its own."""
    found: dict[str, RunFolder] = {}
    for run in collected.runs:
        label = f"{run.scheme} seed {run.seed}"
        found[label if label not in found else f"{label} in {run.folder}"] = run
    return found


def _beside(collected: Collected, run: RunFolder) -> list[RunFolder]:
    """Other runs of its seed that decide something."""
    return [other for other in collected.runs if other.seed == run.seed and other is not run and not other.is_ceiling]


# ---------------------------------------------------------------------- words
def _sentences(report: Report) -> list[str]:
    counted = report.collected.counted
    if not counted:
        return ["No round has been played yet."]
    rounds = len(counted[0].records)
    so_far = f"No run is finished: what follows compares them after round {rounds}, which all have played."
    return [*([] if report.collected.finished else [so_far]), *in_words(report.summary)]


def _facts(collected: Collected) -> dict[str, str]:
    config, seeds = collected.config, sorted({run.seed for run in collected.runs})
    if not seeds:
        return {}
    consecutive = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    budgets = [run.manifest.budgets for run in collected.runs]
    return {
        "runs finished": f"{len(collected.finished)} of {len(collected.runs)}",
        "seeds" if len(seeds) > 1 else "seed":
            f"{seeds[0]} – {seeds[-1]}" if consecutive else ", ".join(map(str, seeds)),
        **({"own settings": own} if (own := own_settings(config)) else {}),
        "schemes": str(len(collected.schemes)),
        "rounds": str(config.training.rounds),
        "model": trained_and_charged(config) or config.model_spec.name,
        "clients, blocks": f"{config.scenario.clients}, {config.radio.num_rbs}",
        "delay budget a round": _span([one.delay_s for one in budgets], "s"),
        "energy budget a client": _span([one.energy_j for one in budgets], "J"),
        **({"privacy": _privacy(collected.runs)} if config.privacy.noisy else {}),
    }  # fmt: skip


def _privacy(runs: Sequence[RunFolder]) -> str:
    """ε after the last round."""
    ends = [run.records[-1].epsilon for run in runs if run.records]
    if (known := [end for end in ends if end is not None]) and len(known) == len(ends):
        span = " – ".join(dict.fromkeys((number(min(known)), number(max(known)))))
        return f"ε = {span} at δ = {DELTA:g}, for one image of one client"
    return "no guarantee: both activations and updates need noise" if ends else "–"


def _span(values: Sequence[float], unit: str) -> str:
    low, high = format_si(min(values), unit), format_si(max(values), unit)
    return low if low == high else f"{low} – {high}"


# ---------------------------------------------------------------------- where it comes from
def _fields(collected: Collected) -> dict[str, dict[str, str]]:
    """Every field of the configuration: its value, or several and who has which; those that differ come first."""
    trees = [(run.folder.name, by_name(run.manifest.config.model_dump(mode="json"))) for run in collected.runs]
    holders: dict[str, dict[str, list[str]]] = {}
    for folder, tree in trees:
        for name, value in tree.items():
            holders.setdefault(name, {}).setdefault(_text(value), []).append(folder)
    told = {
        name: {value: ", ".join(who) if len(who) <= 3 else f"{len(who)} runs" for value, who in values.items()}
        for name, values in holders.items()
    }
    return dict(sorted(told.items(), key=lambda field: len(field[1]) == 1))


def _text(value: Any) -> str:
    return "–" if value is None or value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def _versions(collected: Collected) -> list[tuple[str, str]]:
    """What the runs were made with; where they differ, all values."""
    rows = []
    for fact in _FACTS:
        seen = list(dict.fromkeys(_text(run.manifest.facts.get(fact)) for run in collected.runs))
        if fact == "started" and len(seen) > 1:
            seen = [f"{min(seen)} to {max(seen)}"]
        if seen != ["–"]:
            rows.append(("asfl version" if fact == "asfl" else fact.replace("_", " "), ", ".join(seen)))
    threads = sorted({run.manifest.threads for run in collected.runs})
    return [*rows, ("threads", ", ".join(map(str, threads)))]

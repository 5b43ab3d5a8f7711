"""The whole page: what the template shows, the charts as JSON beside it, and the script that draws them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from asfl._version import __version__
from asfl.config import by_name
from asfl.config.errors import AsflError, MissingExtraError
from asfl.config.show import own_settings
from asfl.config.units import format_si, number, percent
from asfl.results.charged import said_once, trained_and_charged
from asfl.results.curves import OURS, Resource, Run
from asfl.results.folders import FoundRun
from asfl.results.page import charts, inside
from asfl.results.page.bounds import Check, check_gap, check_queues, why_not
from asfl.results.page.collect import Collected, RunGroup, collect
from asfl.results.page.convergence import theorem_1
from asfl.results.page.look import DARK, TEMPLATE, Json, styles
from asfl.results.page.origins import compare_command, label_mixes, mix_key, profile_of, run_command
from asfl.results.summary import Summary
from asfl.results.tables import Table, tables_of
from asfl.results.words import in_words

PLOTLY_PATH = "plotly.js"
"""Where a served page finds the chart library; a file carries it inside."""
_FACTS = ("asfl", "python", "torch", "numpy", "platform", "git_commit", "started")
"""Shown; where the data lay on somebody's disk is nobody's business."""


@dataclass(frozen=True)
class Report:
    """What was read, and its numbers: all that page, figures and LaTeX tables are made from."""

    collected: Collected
    summaries: Sequence[Summary]
    """One per group of runs."""

    @classmethod
    def of(cls, folders: Sequence[Path], targets: Sequence[float] | None = None) -> "Report":
        collected = collect(folders)
        return cls(collected, [group.summary(targets) for group in collected.groups])

    @property
    def pairs(self) -> list[tuple[RunGroup, Summary]]:
        return list(zip(self.collected.groups, self.summaries, strict=True))

    def tables(self) -> list[tuple[str, list[Table]]]:
        """By world."""
        return [(group.title, tables_of(summary)) for group, summary in self.pairs if summary.runs]

    def runs(self) -> list[tuple[Summary, list[Run]]]:
        """By world: the runs behind the numbers."""
        return [(summary, list(group.counted)) for group, summary in self.pairs if summary.runs]


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


def page(report: Report, *, data_dir: Path | None = None, version: str = "", library: str | None = None) -> str:
    """One HTML file. With a `version` it is a served page, which asks for newer ones and loads the library apart."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtraError("the report", "report") from None

    def file(name: str) -> Markup:
        return Markup((resources.files(__package__) / "templates" / name).read_text("utf-8"))

    drawn = _Drawn(report, data_dir)
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(
        report=report,
        collected=report.collected,
        drawn=drawn,
        data=Markup(_as_script(drawn.data)),
        facts=_facts,
        sentences=_sentences,
        bounds={label: _bounds(report.collected, run) for label, (_, run) in drawn.inside.items()},
        charged=said_once(trained_and_charged(group.config) for group in report.collected.groups),
        commands=[
            (group.title, compare_command(group), "\n".join(map(run_command, group.runs)))
            for group in report.collected.groups
        ],
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

    def __init__(self, report: Report, data_dir: Path | None) -> None:
        collected = report.collected
        self.looks, self.charts, self.chosen = styles(collected), dict[str, Json](), dict[str, str]()
        self.notes = list(collected.notes)
        targets = sorted({target for summary in report.summaries for target in summary.targets})
        self._put("chart-accuracy", charts.accuracy(collected, self.looks, targets), axis="delay")
        self.ways = [self._way(n, group, summary) for n, (group, summary) in enumerate(report.pairs) if summary.targets]
        self.labels = _labels(collected)
        self.inside = {label: found for label, found in self.labels.items() if not found[1].is_ceiling}
        self.maps = {name: found[0] for name, found in inside.MAPS.items() if name not in ("uplink", "snr")}
        self._inside(collected, data_dir)
        self._put("chart-discrepancy", charts.discrepancies(collected, self.looks), drift="discrepancy")
        losses = charts.losses(collected)
        self._put("chart-losses", {"": losses} if losses else {})
        self.layers = [found for n, group in enumerate(collected.groups) if (found := self._layers(n, group))]

    @property
    def data(self) -> Json:
        dark = DARK | {look["color"]: look["dark"] for look in self.looks.values()}
        return {"charts": self.charts, "chosen": self.chosen, "dark": dark, "template": TEMPLATE}

    def _put(self, place: str, figures: Mapping[str, Json | str], **chosen: str) -> None:
        if figures:
            self.charts[place] = dict(figures)
            self.chosen |= chosen

    def _way(self, n: int, group: RunGroup, summary: Summary) -> Json:
        main, names = summary.main_target(), [percent(target) for target in summary.targets]
        chosen = {f"target-{n}": percent(main) if main is not None else names[0]}
        places: dict[str, Resource] = {f"chart-delay-{n}": "delay_s", f"chart-energy-{n}": "energy_j"}
        for place, resource in places.items():
            ways = [charts.way_to(group, summary, target, resource, self.looks) for target in summary.targets]
            self._put(place, dict(zip(names, ways, strict=True)), **chosen)
        rows = len(summary.runs)
        size = "bars-one" if rows <= 2 else "bars-few" if rows <= 4 else "bars-some" if rows <= 8 else "bars-many"
        return {"number": n, "title": group.title, "targets": {name: name for name in names}, "size": size}

    def _inside(self, collected: Collected, data_dir: Path | None) -> None:
        mixes, notes = label_mixes(collected.runs, data_dir)
        self.notes += notes
        columns, found = inside.map_columns(collected.runs), dict[str, Json]()
        found["chart-mix"] = {f"mix of {key}": inside.label_chart(mix, key) for key, mix in mixes.items()}
        for label, (series, run) in self.inside.items():
            if (key := mix_key(run.manifest.config)) in mixes:
                found["chart-mix"][label] = f"mix of {key}"  # drawn once, however many runs share it
            for place, figure in inside.lines_of(run, self.looks[series]["color"]).items():
                found.setdefault(place, {})[label] = figure
            for name in inside.maps_of(run) if run.records else ():
                found.setdefault("chart-map", {})[f"{label}|{name}"] = inside.client_map(run, name, columns)
                self.maps[name] = inside.MAPS[name][0]
        first = next((label for label, (_, run) in self.labels.items() if run.scheme == OURS and run.records), None)
        for place, figures in found.items():
            self._put(place, figures, run=first or next(iter(self.inside), ""), map="rbs")

    def _layers(self, n: int, group: RunGroup) -> Json | None:
        profile, why = profile_of(group)
        if profile is None:
            self.notes += [why] if why not in self.notes else []
            return None
        for place, figure in zip((f"chart-bits-{n}", f"chart-flops-{n}"), charts.layers(profile), strict=True):
            self._put(place, {"": figure})
        cuts = charts.cuts(group, profile)
        self._put(f"chart-cuts-{n}", {"": cuts} if cuts else {})
        size = "bars-few" if len(group.schemes) <= 6 else "bars-many"
        title = profile.name + (f" ({group.title})" if group.title else "")
        return {"number": n, "title": title, "size": size, "cuts": cuts is not None}


def _labels(collected: Collected) -> dict[str, tuple[str, FoundRun]]:
    """Every run under a name of its own, with its series."""
    found: dict[str, tuple[str, FoundRun]] = {}
    for group in collected.groups:
        for run in group.runs:
            series = group.series(run.scheme)
            label = f"{series} seed {run.seed}"
            found[label if label not in found else f"{label} in {run.folder}"] = series, run
    return found


# ---------------------------------------------------------------------- words
def _sentences(group: RunGroup, summary: Summary) -> list[str]:
    if not group.counted:
        return ["No round has been played yet."]
    rounds = len(group.counted[0].records)
    so_far = f"No run is finished: what follows compares them after round {rounds}, which everybody has played."
    return [*([] if group.finished else [so_far]), *in_words(summary)]


def _facts(group: RunGroup) -> dict[str, str]:
    config, seeds = group.config, sorted({run.seed for run in group.runs})
    consecutive = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    budgets = [run.manifest.budgets for run in group.runs]
    of_world = {
        "schemes": str(len(group.schemes)),
        "rounds": str(config.training.rounds),
        "model": trained_and_charged(config) or config.model_spec.name,
        "clients, blocks": f"{config.scenario.clients}, {config.radio.num_rbs}",
    }
    return {
        "runs finished": f"{len(group.finished)} of {len(group.runs)}",
        "seeds" if len(seeds) > 1 else "seed":
            f"{seeds[0]} – {seeds[-1]}" if consecutive else ", ".join(map(str, seeds)),
        **({"own settings": own} if (own := own_settings(config)) else {}),
        **({} if group.title else of_world),  # one of several has a title that says what sets it apart
        "delay budget a round": _span([one.delay_s for one in budgets], "s"),
        "energy budget a client": _span([one.energy_j for one in budgets], "J"),
        **({"privacy": _privacy(group)} if config.privacy.noisy else {}),
    }  # fmt: skip


def _privacy(group: RunGroup) -> str:
    """ε after the last round."""
    ends = [run.records[-1].epsilon for run in group.runs if run.records]
    if (known := [end for end in ends if end is not None]) and len(known) == len(ends):
        span = " – ".join(dict.fromkeys((number(min(known)), number(max(known)))))
        return f"ε = {span} at δ = {group.config.privacy.delta:g}, for one image of one client"
    return "no guarantee: both activations and updates need noise" if ends else "–"


def _span(values: Sequence[float], unit: str) -> str:
    low, high = format_si(min(values), unit), format_si(max(values), unit)
    return low if low == high else f"{low} – {high}"


def _bounds(collected: Collected, run: FoundRun) -> list[Table | str]:
    """Theorems 2 and 3, then 1, of one run; or why they can't be told."""
    learning = theorem_1(run) if run.records else []
    group = next(group for group in collected.groups if run in group.runs)
    return [why_not(run) or _queue_table(group, run), *learning]


def _queue_table(group: RunGroup, run: FoundRun) -> Table:
    others = [other for other in group.runs if other.seed == run.seed and other is not run and not other.is_ceiling]
    checks: list[Check] = [*check_queues(run), *check_gap(run, others)]
    normalised = run.manifest.config.decision.equations == "corrected"
    empty = sum("says nothing" in one.verdict for one in checks)
    note = (
        ("Queues and excess are in units of the budget. " if normalised else "In seconds and joules. ")
        + "T_max and E_max are the dearest round of this run. "
        + (f"{empty} of {len(checks)} bounds hold but say nothing." if empty else "")
    )
    rows = [[one.what, _signed(one.measured), _signed(one.bound), one.source, one.verdict] for one in checks]
    header = ["what", "measured", "bound", "from", "verdict"]
    return Table("bounds", "Bounds and what was measured.", note, header, rows)


def _signed(value: float) -> str:
    return "∞" if value == float("inf") else number(value).replace("-", "−")


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

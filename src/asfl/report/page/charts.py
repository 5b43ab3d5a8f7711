"""Runs → the numbers behind the charts, as plain JSON and small: the page draws, this decides what.

Curves have at most `MOST_POINTS` points; longer ones are thinned. Maps (clients × rounds) are one byte a cell.
"""

import base64
import colorsys
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.records import RoundRecord
from asfl.report.figure import spans_magnitudes
from asfl.report.page.bounds import queue_bounds
from asfl.report.page.collect import Collected, FoundRun, World
from asfl.report.page.tables import partly
from asfl.report.training import style_of
from asfl.summary import OURS, Curve, Resource, Summary, amount, percent, share

Floats = NDArray[np.float64]
Json = dict[str, Any]

MOST_POINTS = 300
MOST_CELLS = 1_500_000
"""Of all maps together: about 2 MB in the page."""
MOST_MAPPED_CLIENTS = 200
_MISSING = 255
_AXES: dict[str, Callable[[Curve], Sequence[float]]] = {
    "delay": lambda curve: curve.delay_s,
    "energy": lambda curve: curve.energy_j,
    "rounds": lambda curve: curve.round,
}
_MAPS: dict[str, Callable[[RoundRecord], Sequence[float]]] = {
    "rbs": lambda record: record.rb_count,
    "power": lambda record: record.tx_power_w,
    "errors": lambda record: record.packet_error_rate,
    "energy": lambda record: record.energy_j,
    "queue": lambda record: record.energy_queue,
}


# ---------------------------------------------------------------------- colours
def styles(collected: Collected) -> Json:
    """Colour and dashes by series: those of the pictures; of several worlds, a scheme's colour and a world's dashes."""
    dashes = ["solid", "6px,3px", "2px,2px", "9px,3px,2px,3px", "4px,2px"]
    only_one_scheme = len({run.scheme for run in collected.runs}) == 1
    found: Json = {}
    for number, world in enumerate(collected.worlds):
        for scheme in world.schemes:
            looks = dict(style_of(scheme))
            if len(collected.worlds) > 1:
                if only_one_scheme:
                    looks["color"] = style_of(collected_colour(number))["color"]
                dash = dashes[number % len(dashes)]
            else:
                dash = _dash(looks["linestyle"], looks["linewidth"])
            found[world.series(scheme)] = {
                "color": looks["color"],
                "dark": _for_dark(looks["color"]),
                "dash": dash,
                "width": looks["linewidth"],
                "ours": scheme == OURS,
            }
    return found


def collected_colour(number: int) -> str:
    """A scheme whose colour stands for the world with this number."""
    from asfl.schemes import SCHEMES

    return list(SCHEMES)[number % len(SCHEMES)]


def _dash(linestyle: Any, width: float) -> str:
    return "solid" if linestyle == "-" else ",".join(f"{part * width:.3g}px" for part in linestyle[1])


def _for_dark(colour: str) -> str:
    """The same hue, light enough for a dark page."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    lighter = 0.92 if light < 0.05 else max(light, 0.62)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lighter, saturation))


# ---------------------------------------------------------------------- all runs
def accuracy(collected: Collected) -> Json | None:
    """Accuracy against delay, energy and rounds: finished seeds as mean and range, unfinished runs one by one."""
    series = [one for world in collected.worlds for one in _series(world)]
    if not series:
        return None
    targets = sorted({target for world in collected.worlds for target in world.summary().targets})
    ends = {axis: [one["axes"][axis]["x"][-1] for one in series] for axis in _AXES}
    return {
        "series": series,
        "targets": targets,
        "log": {axis: spans_magnitudes(value for value in values if value) for axis, values in ends.items()},
    }


def _series(world: World) -> Iterable[Json]:
    for scheme in world.schemes:
        runs = [run for run in world.runs if run.scheme == scheme]
        done = [curve for run in runs if run.finished and (curve := _finite(run)) is not None]
        if done:
            yield {
                "name": world.series(scheme),
                "seeds": len(done),
                "open": False,
                "axes": {axis: _band(done, along) for axis, along in _AXES.items()},
            }
        for run in runs:
            curve = None if run.finished else _finite(run)
            if curve is not None:
                yield {
                    "name": world.series(scheme),
                    "label": f"seed {run.seed}, {len(run.records)} of {run.rounds} rounds",
                    "seeds": 1,
                    "open": True,
                    "axes": {axis: _band([curve], along) for axis, along in _AXES.items()},
                }


def _finite(run: FoundRun) -> Curve | None:
    """Its evaluations up to a dead link; None without any."""
    usable = [r for r in run.records if math.isfinite(r.total_delay_s) and math.isfinite(r.total_energy_j)]
    curve = Curve.of(usable)
    return curve if curve.accuracy else None


def _band(curves: Sequence[Curve], along: Callable[[Curve], Sequence[float]]) -> Json:
    """Mean, lowest and highest seed from where all have begun; one that has ended counts on with its last value."""
    known = [(np.asarray(along(curve), float), 100 * np.asarray(curve.smoothed)) for curve in curves]
    start = max(x[0] for x, _ in known)
    grid = np.unique(np.concatenate([x[x >= start] for x, _ in known]))
    grid = grid[_kept(len(grid))]
    values = np.array([np.interp(grid, x, y) for x, y in known])
    found: Json = {"x": numbers(grid), "mean": numbers(values.mean(axis=0))}
    if len(curves) > 1:
        found |= {"low": numbers(values.min(axis=0)), "high": numbers(values.max(axis=0))}
    return found


def bars(world: World, summary: Summary) -> Json | None:
    """Delay and energy to each target, and what ASFL saves; the fastest scheme first."""
    if not summary.targets:
        return None
    main = summary.main_target()
    return {
        "main": summary.targets.index(main) if main is not None else 0,
        "targets": [
            {"label": percent(target), "rows": _target_rows(world, summary, target)} for target in summary.targets
        ],
    }


def _target_rows(world: World, summary: Summary, target: float) -> list[Json]:
    needed = {name: summary.to_reach(name, target, "delay_s") for name in summary.runs}
    order = sorted(needed, key=lambda name: needed[name].mean if needed[name].seeds else math.inf)
    rows = []
    for name in order:
        saving = summary.saving(name, target)
        saves = saving is not None and saving.delay.seeds > 0
        rows.append(
            {
                "scheme": name,
                "series": world.series(name),
                "delay": _bar(summary, name, target, "delay_s"),
                "energy": _bar(summary, name, target, "energy_j"),
                "saves": [share(saving.delay, 0), share(saving.energy, 0)] if saving and saves else None,
            }
        )
    return rows


def _bar(summary: Summary, scheme: str, target: float, resource: Resource) -> Json | None:
    stat = summary.to_reach(scheme, target, resource)
    if not stat.seeds:
        return None
    text = amount(stat) + partly(stat, len(summary.runs[scheme]))
    return {"mean": number(stat.mean), "sd": number(stat.sd), "text": text}


def discrepancies(collected: Collected) -> list[Json]:
    """Discrepancy and spread by series: means over the counted seeds, as long as all of them run."""
    found = []
    for world in collected.worlds:
        for scheme in world.schemes:
            runs = [run.records for run in world.counted if run.scheme == scheme and run.records]
            if runs:
                rounds = min(map(len, runs))
                columns = {
                    name: np.mean([[getattr(r, name) for r in records[:rounds]] for records in runs], axis=0)
                    for name in ("discrepancy", "spread")
                }
                parts = {name: numbers(_binned(values)) for name, values in columns.items()}
                found.append({"name": world.series(scheme), "x": numbers(_binned(np.arange(1.0, rounds + 1))), **parts})
    return found


def losses(collected: Collected) -> list[Json]:
    """Packets expected to be lost, of those sent, and packets that were."""
    found = []
    for world in collected.worlds:
        for scheme in world.schemes:
            runs = [run for run in world.counted if run.scheme == scheme]
            pairs = [pair for run in runs if (pair := _lost(run.records)) is not None]
            if pairs:
                expected, realised = np.mean(pairs, axis=0)
                row = {"name": world.series(scheme), "expected": number(expected), "realised": number(realised)}
                found.append(row)
    return found


def _lost(records: Sequence[RoundRecord]) -> tuple[float, float] | None:
    """Per cent of the packets that were sent; None if none was."""
    rate, sent, arrived = (
        np.array([getattr(record, name) for record in records], float)
        for name in ("packet_error_rate", "rb_count", "arrived")
    )
    served = sent > 0
    if not served.any():
        return None
    return float(100 * rate[served].mean()), float(100 * (1 - arrived[served].mean()))


# ---------------------------------------------------------------------- one run
def one_run(run: FoundRun, label: str, series: str, columns: int) -> Json:
    """What the drop-down shows: cut, maps, queues and energies of a run, round by round."""
    records, budgets = run.records, run.manifest.budgets
    delay_bound, energy_bound = queue_bounds(run)
    lines: Mapping[str, ArrayLike] = {
        "x": [record.round for record in records],
        "cut": [record.mean_cut for record in records],
        "delay": [record.delay_s for record in records],
        "resplit": [record.resplit_delay_s for record in records],
        "delayQueue": [record.delay_queue for record in records],
        "energy": [_mean_of(record.energy_j) for record in records],
        "energyMost": [max(record.energy_j, default=math.nan) for record in records],
        "energyQueue": [_mean_of(record.energy_queue) for record in records],
        "energyQueueMost": [max(record.energy_queue, default=math.nan) for record in records],
        "expectedLost": [100 * record.mean_packet_error_rate for record in records],
        "realisedLost": [_share_lost(record) for record in records],
    }
    energy = np.array([record.energy_j for record in records], float)
    resplit = np.array([record.resplit_energy_j for record in records], float)
    return {
        "label": label,
        "series": series,
        "every": max(1, math.ceil(len(records) / MOST_POINTS)),
        "mapEvery": max(1, math.ceil(len(records) / columns)),
        "lines": {name: numbers(_binned(np.asarray(values, float))) for name, values in lines.items()},
        "budget": {"delay": number(budgets.delay_s), "energy": number(budgets.energy_j)},
        "bound": {"delay": number(delay_bound), "energy": number(energy_bound)},
        "clientEnergy": numbers(energy.mean(axis=0) - resplit.mean(axis=0)) if len(records) else [],
        "clientResplit": numbers(resplit.mean(axis=0)) if len(records) else [],
        "maps": {name: _map(records, of_round, columns) for name, of_round in _maps_of(records).items()},
    }


def _maps_of(records: Sequence[RoundRecord]) -> Mapping[str, Callable[[RoundRecord], Sequence[float]]]:
    if not records:
        return {}
    return {**_MAPS, "uplink": _uplink} if any(record.measured for record in records) else _MAPS


def _uplink(record: RoundRecord) -> Sequence[float]:
    """Mbit/s, as the server has measured it."""
    rates = record.measured["uplink_bps"] if record.measured else [None] * len(record.arrived)
    return [math.nan if rate is None else rate / 1e6 for rate in rates]


def map_columns(runs: Sequence[FoundRun]) -> int:
    """How many columns a map may have, so that all of them fit into the page."""
    clients = sum(min(len(run.records[0].rb_count), MOST_MAPPED_CLIENTS) for run in runs if run.records)
    return int(np.clip(MOST_CELLS // max(1, clients * len(_MAPS)), 20, MOST_POINTS))


def _map(records: Sequence[RoundRecord], of_round: Callable[[RoundRecord], Sequence[float]], columns: int) -> Json:
    """[clients, columns] as bytes: 0 … 254 from low to high, 255 where there is nothing."""
    values = np.array([of_round(record) for record in records], float)[:, :MOST_MAPPED_CLIENTS]
    values = _binned(values, columns).T
    finite = np.isfinite(values)
    low = float(min(values[finite].min(initial=0.0), 0.0))
    high = float(values[finite].max(initial=0.0))
    whole = high <= 254 and bool((values[finite] == np.round(values[finite])).all())
    high = 254.0 + low if whole else high  # whole numbers stay exact
    step = (high - low) / 254 or 1.0
    cells = np.where(finite, np.round((np.where(finite, values, low) - low) / step), _MISSING).astype(np.uint8)
    return {
        "rows": values.shape[0],
        "low": low,
        "step": number(step),
        "cells": base64.b64encode(cells.tobytes()).decode(),
    }


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _share_lost(record: RoundRecord) -> float:
    """Per cent of the packets of the round; NaN if none was sent."""
    return 100 * (1 - record.arrived_count / record.scheduled_count) if record.scheduled_count else math.nan


# ---------------------------------------------------------------------- numbers
def number(value: float) -> float | None:
    """Four digits are more than a pixel shows; what isn't finite is null."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def numbers(values: ArrayLike) -> list[float | int | None]:
    found = [number(value) for value in np.asarray(values, float).tolist()]
    return [int(value) if value is not None and value.is_integer() else value for value in found]


def _kept(count: int) -> NDArray[np.int64]:
    """Which of so many points stay: all, or evenly spread ones with the first and the last."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, MOST_POINTS).round().astype(np.int64))


def _binned(values: Floats, columns: int = MOST_POINTS) -> Floats:
    """Means of as many neighbouring entries (along the first axis) as it takes to have at most so many."""
    values = np.asarray(values, float)
    every = math.ceil(len(values) / columns)
    if every <= 1:
        return values
    starts = np.arange(0, len(values), every)
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(float), starts, axis=0)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))

"""`central` in a comparison: a ceiling without costs, drawn as a line and never ranked."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import made_up_round, made_up_run
from run_folders import comparison_folder, run_folder

from asfl.config import load_config
from asfl.costs.world import Budgets
from asfl.results.charts.chart import Line
from asfl.results.charts.runs import accuracy, write_figures
from asfl.results.curves import Run
from asfl.results.page import Report, page
from asfl.results.page.bounds import not_covered, theorem_1
from asfl.results.reproduce.claims import MostAccurate
from asfl.results.summary import Outcome, Summary, choose_targets, summarize_run, trained_and_charged
from asfl.results.tables import Table, in_words, latex_tables, tables_of
from asfl.runs.records import RoundRecord
from asfl.schemes import CEILING
from conftest import Asfl, assert_refused

STANDARD = load_config("demo", ["decision.queue_rule=standard", "training.optimizer=sgd"]).config
QUARTER = "VGG-19 at quarter width trained, charged as vgg19-cifar10"


def _without_costs(record: RoundRecord) -> RoundRecord:
    nothing = [0.0] * 3
    return replace(
        record, cut=None, rb_count=nothing, tx_power_w=nothing, packet_error_rate=[1.0] * 3, arrived=[0] * 3,
        delay_s=0.0, uplink_stage_delay_s=0.0, server_stage_delay_s=0.0, energy_j=nothing, total_delay_s=0.0,
        total_energy_j=0.0, update_norm2=[1.0] * 3,
    )  # fmt: skip


def _central(accuracies: list[float], seed: int = 1) -> Run:
    run = made_up_run(CEILING, accuracies, seed=seed)
    return replace(run, records=[_without_costs(record) for record in run.records])


@pytest.fixture
def runs() -> list[Run]:
    return [
        run
        for seed in (1, 2)
        for run in (
            made_up_run("asfl", [0.4, 0.6, 0.7], seed=seed),
            made_up_run("sfl", [0.3, 0.5, 0.6], seed=seed, delay_s=4),
            _central([0.8, 0.9 + 0.02 * seed, 0.9], seed),
        )
    ]


def test_the_ceiling_is_never_ranked(runs: list[Run]) -> None:
    summary = Summary.of(runs)
    assert max(summary.targets) < 0.7  # chosen from the others
    assert choose_targets(runs) == choose_targets([run for run in runs if not run.is_ceiling])
    for target in summary.targets:
        assert CEILING not in summary.fastest_first(target)
        assert summary.saving(CEILING, target) is None
        assert summary.reached(CEILING, target, "delay_s") == {}
    words = " ".join(in_words(summary))
    assert words.count(CEILING) == 0
    assert "93.0 % would be the best: the ceiling" in words
    tables = {table.key: table for table in tables_of(summary)}
    assert CEILING not in [row[0] for row in tables["savings"].rows]
    for key in ("delay", "energy", "costs", "rounds"):
        (row,) = (row for row in tables[key].rows if row[0] == CEILING)
        assert set(row[1:]) == {"–"}
    (finding,) = MostAccurate("rounds").check([Outcome("demo", "", runs, summary)])
    assert CEILING not in finding.here
    json.dumps(summary.to_json(), allow_nan=False)


def test_the_ceiling_is_a_line_in_every_accuracy_figure(runs: list[Run], tmp_path: Path) -> None:
    for axis in ("delay", "energy", "rounds"):
        lines = [one for one in accuracy(runs, axis).panels[0].series if isinstance(one, Line)]
        (line,) = (one for one in lines if one.name.startswith(CEILING))
        assert len(set(np.asarray(line.y).tolist())) == 1
        assert line.look.dash
    names = {path.name for path in write_figures(Summary.of(runs), runs, tmp_path)}
    assert {"accuracy-delay.png", "time-to-accuracy.png", "cut-queue.png"} <= names
    alone = [run for run in runs if run.is_ceiling]
    assert all(path.exists() for path in write_figures(Summary.of(alone), alone, tmp_path))


def test_the_page_of_a_comparison_with_a_ceiling(tmp_path: Path) -> None:
    folder = comparison_folder(tmp_path / "three", ("asfl", "sfl"))
    for seed in (1, 2):
        records = [_without_costs(made_up_round(number, 0.3 * number)) for number in (1, 2, 3)]
        run_folder(folder / f"{CEILING}-seed{seed}", CEILING, seed=seed, records=records)
    report = Report.of([folder, folder / f"{CEILING}-seed1", folder / f"{CEILING}-seed2"])
    text = page(report, library="")
    assert "(ceiling)" in text
    assert f'value="{CEILING} seed 1"' not in text  # nothing inside it was decided
    assert "nan" not in latex_tables(report.tables)
    alone = page(Report.of([folder / f"{CEILING}-seed1"]), library="")
    assert "chart-accuracy" in alone


# ---------------------------------------------------------------------- medians, what is owed
def _standard(delays: list[float]) -> Run:
    """Queues follow the standard rule."""
    budgets = Budgets(1.6, 1.0)
    records, delay, energy = [], 0.0, np.zeros(3)
    for number, delay_s in enumerate(delays, start=1):
        record = made_up_round(number, 0.5, delay_s=delay_s)
        delay = max(delay + delay_s / budgets.delay_s - 1, 0.0)
        energy = np.maximum(energy + np.array(record.energy_j) / budgets.energy_j - 1, 0.0)
        records.append(replace(record, delay_queue=delay, energy_queue=energy.tolist()))
    return Run("asfl", 1, records, budgets, STANDARD)


def test_medians_and_what_is_owed() -> None:
    one = summarize_run(_standard([1.0, 1.0, 100.0, 2.0]), [])
    assert (one.delay_s, one.median_delay_s, one.median_energy_j) == (26.0, 1.5, 3.0)
    assert one.delay_owed == pytest.approx((100 / 1.6 - 1 + 2 / 1.6 - 1) / 4)
    assert one.delay_owed >= one.delay_over  # what the queue bounds
    assert one.energy_owed == pytest.approx(1.0)  # the second client: 2 J of 1 J in every round


def test_nothing_is_owed_where_queues_do_not_tell() -> None:
    printed = replace(_standard([2.0, 2.0]), config=load_config("demo", ["decision.queue_rule=printed"]).config)
    borrowed = replace(made_up_run("fedavg", [0.5]), config=STANDARD)  # its queues follow other costs
    unknown = made_up_run("asfl", [0.5])
    for run in (printed, borrowed, unknown):
        assert math.isnan(summarize_run(run, []).delay_owed)


# ---------------------------------------------------------------------- trained and charged
def test_what_is_charged_is_said() -> None:
    config = load_config("vgg19-cifar10").config
    assert trained_and_charged(config) == QUARTER
    assert trained_and_charged(load_config("demo").config) == ""
    run = replace(made_up_run("asfl", [0.4, 0.8]), config=config)
    summary = Summary.of([run])
    assert summary.to_json()["model"] == QUARTER
    assert all(QUARTER in table.title for table in tables_of(summary))


def test_scenario_says_what_is_charged(asfl: Asfl) -> None:
    assert_refused(asfl("decide", "--rounds", "2", "--schemes", CEILING), "no radio")
    assert QUARTER in asfl("scenario", "vgg19-cifar10").stdout
    assert json.loads(asfl("scenario", "vgg19-cifar10", "--json").stdout)["model"] == QUARTER


# ---------------------------------------------------------------------- Theorem 1
SEEN = {"norm2": 0.5, "loss": 2.0, "noise2": 1.0, "client_norm2": 400.0, "smoothness": 2.0}


def _measured(*found: dict[str, float] | None) -> Run:
    """Two of three clients arrive in every round."""
    records = [
        replace(made_up_round(number), spread=0.0, train_loss=3.0 - 0.1 * number, gradient=gradient)
        for number, gradient in enumerate(found, start=1)
    ]
    return Run("asfl", 1, records, Budgets(1.6, 1.0), STANDARD)


def _bounds(run: Run) -> Table:
    found = theorem_1(run)
    assert isinstance(found, Table)
    return found


def test_theorem_1_is_not_about_every_run() -> None:
    run = _measured(SEEN)
    adam = replace(run, config=load_config("demo", ["training.optimizer=adam"]).config)
    bounds = _bounds(adam)
    assert {row[-1] for row in bounds.rows} == {"not covered"}
    assert "doesn't cover Adam" in bounds.note
    assert not_covered(run) == ""
    assert "another way" in str(theorem_1(replace(run, scheme="fedavg")))
    assert "hasn't measured a gradient" in str(theorem_1(_measured(None, None)))


def test_theorem_1_of_a_run_that_measured_its_gradient() -> None:
    """Largest constants so far; a measurement stands for the rounds since the one before."""
    later = {**SEEN, "norm2": 0.2, "smoothness": 3.0, "noise2": 0.5}
    bounds = _bounds(_measured(SEEN, None, None, later, None))
    assert [row[0] for row in bounds.rows] == ["as printed, (22)", "corrected", "weighed by arrivals"]
    eta, gap = STANDARD.training.learning_rate, 2.9
    rounds, lost, inverse = 4, 1 / 3, 1 / 2  # two of three arrive
    corrected = 2 * gap / (eta * rounds) + 3.0 * eta * 1.0 * inverse + 400 * (8 * lost**2 + 4 * 3.0 * eta * lost)
    (row,) = (row for row in bounds.rows if row[0] == "corrected")
    assert float(row[6].replace(",", "")) == pytest.approx(corrected, rel=1e-2)
    assert float(row[7]) == pytest.approx((0.5 + 3 * 0.2) / 4, rel=1e-2)
    assert {row[-1] for row in bounds.rows} == {"holds, but says nothing: it is above ψ²"}
    assert "L = 3:" in bounds.note
    assert "no proof" in bounds.note


def test_a_bound_is_not_claimed_where_its_conditions_fail() -> None:
    assert _bounds(_measured({**SEEN, "smoothness": 2000.0})).rows[1][-1].endswith("with steps of 4/L")
    wrong = _measured({**SEEN, "norm2": 1e9})
    wrong = replace(wrong, records=[replace(record, arrived=[1, 1, 1]) for record in wrong.records])
    assert {row[0]: row[-1] for row in _bounds(wrong).rows}["corrected"] == "does not hold"
    for override in ("training.local_steps=2", "robust.average=median"):
        config = load_config("demo", ["training.optimizer=sgd", override]).config
        assert "doesn't cover" in not_covered(replace(_measured(SEEN), config=config))

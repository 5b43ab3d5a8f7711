"""Recharging: with the charges of the record, the record; with others, the same decisions at other costs."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import made_up_run

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.data import load_data
from asfl.results.curves import Run
from asfl.results.recorded import timelines
from asfl.results.reproduce.archive import Found, Point, joined, read_archive, write_archive
from asfl.results.reproduce.recharge import ALWAYS, RECORDED, charged_on, check_charges, recharge_all, recharged
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from conftest import Asfl, assert_refused

TINY = ("scenario.clients=4", "radio.num_rbs=3", "training.batch_size=8", "model.width=0.1", "training.rounds=6")
WORLDS = {
    "asfl": ("decision.outage_s=0.05",),  # so short that some are late
    "asfl-plus": ("decision.timing=overlap", "radio.slices=2"),
    "fedavg:bits=8": ("decision.outage_s=0.2",),
    "sl-best": ("decision.charge=expected",),
    "sfl-best": ("scenario.channel.blocks=selective",),
    "acc-sfl": ("decision.outage_s=0.1",),
    "epsl": ('scenario.channel.kind="3gpp"',),  # clients walk while the clock runs
    "adaptsfl": ("training.local_steps=2",),
    "hasfl": (),
    "fsl-sage:align=2": ("decision.outage_s=0.2",),
    "ampere:alone=2,sending=2": ("decision.timing=overlap",),
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """Trained, six rounds each."""
    made = {}
    for scheme, settings in WORLDS.items():
        config = load_config("demo", [*TINY, *settings]).config
        simulation = Simulation(config, scheme_named(scheme), load_data(config))
        made[scheme] = Run(scheme, 1, [simulation.play_round() for _ in range(6)], simulation.budgets, config)
    return made


@pytest.mark.parametrize("scheme", WORLDS)
def test_the_same_charges_give_the_same_bits(runs: dict[str, Run], scheme: str) -> None:
    assert recharged(runs[scheme]).records == runs[scheme].records


@pytest.mark.parametrize("scheme", WORLDS)
def test_every_round_has_the_timeline_that_was_charged(runs: dict[str, Run], scheme: str) -> None:
    for (met, timeline), record in zip(timelines(runs[scheme]), runs[scheme].records, strict=True):
        assert met.record is record
        assert timeline.delay_s == pytest.approx(record.delay_s)
        assert timeline.joules.sum() == pytest.approx(sum(record.energy_j))


def test_some_of_these_rounds_are_what_is_hard_to_recharge(runs: dict[str, Run]) -> None:
    assert any(record.synced for record in (*runs["asfl-plus"].records, *runs["adaptsfl"].records))
    assert any(record.rb_owner for record in runs["sfl-best"].records)
    assert len({tuple(record.batch or ()) for record in runs["hasfl"].records}) > 1
    late = [
        (rate, count)
        for scheme in ("asfl", "acc-sfl", "fedavg:bits=8")
        for record in runs[scheme].records
        for rate, count in zip(record.packet_error_rate, record.rb_count, strict=True)
    ]
    assert any(rate == 1 and count > 0 for rate, count in late)


# EPSL's clients walk here: their links follow a clock that runs otherwise then.
@pytest.mark.parametrize("scheme", [one for one in WORLDS if one != "epsl"])
def test_overheads_can_be_taken_away_and_put_back(runs: dict[str, Run], scheme: str) -> None:
    free = recharged(runs[scheme], ["decision.overheads=free"])
    assert recharged(free, ALWAYS).records == runs[scheme].records
    for old, new in zip(free.records, runs[scheme].records, strict=True):
        if any(new.energy_j):  # else the server trains alone, and nothing crosses
            assert old.delay_s < new.delay_s
            assert sum(old.energy_j) < sum(new.energy_j)


def test_an_archive_is_recharged_to_the_digits_it_keeps(runs: dict[str, Run], tmp_path: Path) -> None:
    points = [Point("demo", "", scheme, [run]) for scheme, run in runs.items()]
    write_archive(tmp_path / "records.xz", [Found("pareto", "asfl reproduce …", points)])
    (found,) = read_archive(tmp_path / "records.xz")
    for point in found.points:
        (run,) = point.runs
        for before, after in zip(run.records, recharged(run).records, strict=True):
            assert after.delay_s == pytest.approx(before.delay_s, rel=2e-5)
            assert after.energy_j == pytest.approx(before.energy_j, rel=2e-5)
            assert after.accuracy == before.accuracy


def test_a_run_without_powers_stays_as_it_was(runs: dict[str, Run]) -> None:
    records = [replace(record, tx_power_w=[0.0] * 4) for record in runs["asfl-plus"].records]
    run = replace(runs["asfl-plus"], records=records)
    assert recharged(run, ALWAYS) == run


def test_a_faster_server_makes_rounds_shorter_and_changes_nothing_else(runs: dict[str, Run]) -> None:
    points = [Point("demo", "", scheme, [runs[scheme]]) for scheme in ("asfl", "sl-best")]
    (found,) = recharge_all([Found("pareto", "", points)], ["compute.server_hz=1e12"], [], workers=1)
    assert list(found.otherwise) == [RECORDED]
    for point, before in zip(found.points, found.otherwise[RECORDED].points, strict=True):
        for old, new in zip(before.runs[0].records, point.runs[0].records, strict=True):
            assert new.delay_s < old.delay_s
            assert new.energy_j == old.energy_j
            costs = ("delay_s", "server_stage_delay_s", "total_delay_s")
            assert replace(new, **{name: getattr(old, name) for name in costs}) == old


@pytest.mark.parametrize("scheme", WORLDS)
def test_several_machines_at_once_charge_what_each_does(runs: dict[str, Run], scheme: str) -> None:
    run = runs[scheme]
    machines = (("compute.server_hz=1e10",), ("compute.server_hz=1e12",), ("compute.client_device=raspberry-pi-5",))
    configs = [load_config(run.config, settings).config for settings in machines]
    charges = charged_on(run, configs, {})
    for place, settings in enumerate(machines):
        alone = recharged(run, settings).records
        assert charges.of(run, place).records == alone
        assert place > 0 or alone == run.records


def test_what_would_have_changed_the_rounds_is_refused(runs: dict[str, Run]) -> None:
    for setting in ("radio.num_rbs=4", "training.rounds=9", "radio.link=nr", "scenario.channel.kind=rayleigh"):
        with pytest.raises(AsflError, match=f"--set {setting}: recorded rounds can't be recharged"):
            check_charges([setting])
    config = load_config("demo", TINY).config
    for setting, words in (("field.costs=measured", "were measured"), ("budget.total_delay_s=9", "total budgets")):
        with pytest.raises(AsflError, match=words):
            recharged(replace(runs["asfl"], config=load_config(config, [setting]).config))
    assert recharged(made_up_run("central", [0.5])).records  # costs nothing


def test_the_command(runs: dict[str, Run], asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.results.reproduce.page.save_figure", lambda *_: None)
    gone = load_config("demo", [*TINY, "scenario.channel.kind=trace", "scenario.channel.trace_file=gone.npz"]).config
    worlds = [
        Point("demo", "", "demo", [runs["asfl"]]),
        Point("demo", "V = 1", "gone", [replace(runs["asfl"], config=gone)]),
    ]
    write_archive(tmp_path / "records.xz", [Found("pareto", "asfl reproduce pareto", worlds)])
    words = ["reproduce", "--from", "records.xz", "--recharge", "--workers", "1", "--out", "out"]
    result = asfl(*words, "--set", "radio.downlink_bandwidth_hz=1e3", "--archive", "both.xz")
    assert result.returncode == 0, result.stderr
    assert "left as recorded: all runs on gone.npz" in result.stderr
    page = (tmp_path / "out" / "pareto" / "results.md").read_text("utf-8")
    assert "--recharge --set radio.downlink_bandwidth_hz=1e3" in page
    assert f"a round: s/J | {RECORDED}: s/J" in page
    assert asfl("reproduce", "--from", "both.xz", "--out", "again").returncode == 0
    assert (tmp_path / "again" / "pareto" / "results.md").read_text("utf-8") == page
    (both,) = read_archive(tmp_path / "both.xz")
    assert [run.config for point in both.points for run in point.runs][1] == gone
    (newer,) = joined([both], [Found("pareto", "asfl reproduce pareto", [replace(worlds[0], runs=[runs["asfl"]])])])
    assert newer.otherwise[RECORDED].points[0].runs[0] == runs["asfl"]  # trained anew, it has only one charge
    assert_refused(asfl(*words, "--set", "radio.num_rbs=4"), "can't be recharged")
    assert_refused(asfl("reproduce", "pareto", "--recharge"), "--recharge doesn't count here")

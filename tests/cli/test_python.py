"""`asfl.run`, `asfl.compare` and `asfl.Simulation`: what Python gets is what the command line leaves behind."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_round

import asfl
from asfl.api.progress import RunsProgress
from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.runs.jobs import Ended, Job
from asfl.runs.manifest import read_manifest
from asfl.runs.records import read_records

TINY: dict[str, Any] = {
    "scenario.clients": 3, "radio.num_rbs": 3, "model.width": 0.1, "training.batch_size": 8, "output.track": "none",
}  # fmt: skip


untyped: Any = asfl  # a type checker finds some of the mistakes below, too


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_public_names_are_listed_and_say_what_they_are() -> None:
    assert {"run", "compare", "Simulation", "Results", "load_runs", "register_scheme"} <= set(dir(asfl))
    for name in dir(asfl):
        if not name.startswith("_"):
            assert inspect.getdoc(getattr(asfl, name)), name
    with pytest.raises(AttributeError, match="nothing"):
        _ = untyped.nothing


def test_the_same_call_finds_its_run_and_more_rounds_extend_it(capsys: pytest.CaptureFixture[str]) -> None:
    first = asfl.run("demo", rounds=2, **TINY)
    assert first.finished
    before = (first.folder / "rounds.jsonl").read_bytes()
    capsys.readouterr()
    assert asfl.run("demo", rounds=2, **TINY).folder == first.folder
    assert capsys.readouterr().err == ""  # nothing was trained
    longer = asfl.run("demo", rounds=3, **TINY)
    assert longer.folder == first.folder
    assert (first.folder / "rounds.jsonl").read_bytes().startswith(before)
    other = asfl.run("demo", rounds=1, progress=False, **(TINY | {"training.batch_size": 4}))
    assert other.folder != first.folder
    assert list(longer.rounds["round"]) == [1, 2, 3]
    assert list(longer.summary["rounds"]) == [3]
    assert "asfl seed 1: 3 of 3 rounds" in repr(longer)
    page = longer._repr_html_()
    assert "<table>" in page
    assert "data:image/png" in page
    assert longer.report().read_text().startswith("<!doctype html>")
    longer.plot("energy", "picture.svg")
    assert Path("picture.svg").exists()
    with pytest.raises(AsflError, match="valid: delay, energy, rounds"):
        longer.plot("time")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: untyped.run("demo", **{"training.batch_sze": 3}), "unknown key 'training.batch_sze': did you mean"),
        (lambda: untyped.run({"training": {"rounds": "x"}}), "training.rounds = 'x' must be a whole number"),
        (lambda: untyped.run({3: 4}), "3 is no name of a field"),
        (lambda: untyped.run(["demo"]), "is no configuration"),
        (lambda: untyped.run("demo", "asfx"), "unknown scheme 'asfx': did you mean 'asfl'?"),
        (lambda: untyped.compare("demo"), "asfl.compare(['asfl', 'sfl'], 'demo')"),
        (lambda: untyped.compare(["asfl"], workers=0), "workers = 0 must be a whole number ≥ 1"),
        (lambda: untyped.Simulation("demo", rounds=0), "training.rounds = 0 must be a whole number ≥ 1"),
    ],
)
def test_a_bad_argument_gets_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(AsflError) as refused:
        call()
    assert words in str(refused.value)
    assert list(Path().iterdir()) == []


def test_a_comparison_knows_what_this_process_registered() -> None:
    from own_things import forgotten_afterwards

    from asfl.schemes.asfl import AsflScheme

    with forgotten_afterwards():
        asfl.register_scheme(AsflScheme("here", cuts=(2,)))
        made = asfl.compare(["asfl", "sfl", "here"], rounds=2, progress=False, **TINY)
    assert made.finished
    assert not made.failed
    assert set(made.rounds["scheme"]) == {"asfl", "sfl", "here"}
    assert read_manifest(made.folder / "sfl-seed1").recorded  # it borrows from ASFL's run
    assert any("ASFL" in sentence for sentence in made.words)


def test_the_loop_is_the_run() -> None:
    made = asfl.run("demo", "sfl", rounds=2, progress=False, **TINY)
    simulation = asfl.Simulation("demo", "sfl", rounds=2, **TINY)
    assert list(simulation) == read_records(made.folder)
    assert list(simulation) == []
    assert simulation.average_model()


def test_off_a_terminal_rounds_of_a_run_that_is_alone_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("asfl", 1, load_config("demo", ["training.rounds=3"]).config, Path("nowhere"))
    with RunsProgress({job.name: 3}, 1) as display:
        for number, accuracy in ((1, 0.5), (2, None), (3, 0.6)):
            display.show(job, made_up_round(number, accuracy))
        display.show(job, Ended(True))
    first, third, end = capsys.readouterr().err.splitlines()
    assert first == "round 1 of 3: 50.0 %, 2.00 s, 3.00 J, cut 3, 2 of 2 arrived"
    assert third == "round 3 of 3: 60.0 %, 6.00 s, 9.00 J, cut 3, 2 of 2 arrived"
    assert end == "asfl seed 1: 60.0 %, 6.00 s, 9.00 J after 3 rounds [1 of 1 finished]"

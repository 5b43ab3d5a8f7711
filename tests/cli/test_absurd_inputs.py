"""Absurd inputs through the real command: one clear error each, before anything is taken or written."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from asfl.cli.output import json_text
from conftest import Asfl, assert_refused
from studies.torture import inputs
from studies.torture.made_up import ROUND

MANY = ",".join(map(str, range(1, 1002)))


def test_a_slice_of_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make torture` tries 20,000 of these, in a process with a limit on its memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("ASFL_PLUGINS", "")
    for index in range(60):
        case = inputs.case_at(7, index, tmp_path)
        if case.arguments[0] not in ("run", "fleet", "compare", "reproduce"):  # those import for seconds
            assert inputs.tried(case, ("ascii", "utf-8")[index % 2]) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("scenario.clients=1000000000", "scenario.clients = 1000000000 must be a whole number ≥ 1 and ≤ 100,000"),
        ("model.width=1e300", "model.width = 1e+300 must be a number > 0 and ≤ 100"),
        (f"scenario.clients={'7' * 5000}", "a whole number above 2^128"),
        (f"scenario.clients={'[' * 200}{']' * 200}", "nested more than 32 deep"),
        (f"{'a.' * 2000}b=1", "write it as section.field=value"),
        (f"model.charged_as={'a' * 300}", "is no name of a file"),
        ('scenario.channel.trace_file="a\\u0000b"', "is no name of a file"),
        (f'radio.rb_bandwidth_hz="{"9" * 5000} km"', "has the unit 'km'"),
        ("compute.server_hz=5e-324", "compute.server_hz: 4.94066e-324 is too small to compute with"),
        ("model.charged_as=\udcff", "is not in UTF-8"),
        (f"scenario.{'x' * 2000}=1", "unknown key 'scenario.xxx"),
    ],
)
def test_values_out_of_any_range(asfl: Asfl, setting: str, words: str) -> None:
    refused = asfl("explain", "demo", "--set", setting)
    assert_refused(refused, words)
    assert len(refused.stderr) < 500


@pytest.mark.parametrize("command", [["explain"], ["check"], ["decide"]])
def test_files_that_never_end(asfl: Asfl, tmp_path: Path, command: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero"):
        assert_refused(asfl(*command, name), f"{name}: a device or a pipe, not a file")
    assert_refused(asfl(*command, f"{'a' * 300}.toml"), "File name too long")


def test_files_that_are_nested_too_deep(asfl: Asfl, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text(f"[{'a.' * 5000}b]\n")
    assert_refused(asfl("check", "deep.toml"), "deep.toml is nested more than 32 deep")
    (tmp_path / "deep.json").write_text('{"a":' * 900 + "1" + "}" * 900)
    assert_refused(asfl("decide", "deep.json", "--cost"), "deep.json is nested more than 32 deep")
    (tmp_path / "long.json").write_text('{"previous_cut": ' + "7" * 5000 + "}")
    assert_refused(asfl("decide", "long.json"), "long.json", "a whole number above 2^128")


def test_round_files_that_cannot_be_meant(asfl: Asfl, tmp_path: Path) -> None:
    for content in ('{"profile": "\\ud800"}', '{"\\udc00": 1}', '["\\ud800"]'):
        (tmp_path / "half.json").write_text(content)
        assert_refused(asfl("decide", "half.json"), "half.json has half of a letter in it")
    (tmp_path / "tiny.json").write_text(json.dumps({**ROUND, "rules": {"outage_s": 5e-324}}))
    assert_refused(asfl("decide", "tiny.json", "--cost"), "outage_s: 4.94066e-324 is too small to compute with")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["compare", "--seeds", "1000000000"], "1<=x<=10000"),
        (["decide", "--rounds", "2", "--seeds", "1000000000"], "1<=x<=10000"),
        (["decide", "--rounds", "1000000000", "--schemes", "asfl"], "1 runs of 1,000,000,000 rounds; one command does"),
        (
            ["compare", "--seeds", "10000", "--schemes", "asfl,sfl"],
            "2 schemes × 10,000 seeds: 20,000 runs of 40 rounds",
        ),
        (
            ["sweep", "--over", f"data.dirichlet_alpha={MANY}", "--seeds", "10", "--schemes", "asfl"],
            "1,001 combinations of values × 1 schemes × 10 seeds: 10,010 runs",
        ),
    ],
)
def test_runs_are_counted_before_they_are_planned(asfl: Asfl, tmp_path: Path, command: list[str], words: str) -> None:
    assert_refused(asfl(*command), words)
    assert not list(tmp_path.iterdir())


def test_worlds_in_which_nothing_arrives(asfl: Asfl) -> None:
    far = ["--set", "radio.noise_psd_w_per_hz=1"]
    for command in (["decide", "--rounds", "2", "--schemes", "asfl", *far], ["scenario", *far]):
        assert_refused(asfl(*command), 'energy_budget_j can\'t be "auto" here', "which no machine can mean")


def test_json_has_no_infinities() -> None:
    data = {"a": [np.inf, 1.5, {"b": -np.inf}], "c": (float("nan"), 2), "d": "inf"}
    assert json.loads(json_text(data)) == {"a": [None, 1.5, {"b": None}], "c": [None, 2], "d": "inf"}


def test_a_fleet_that_cannot_write_is_refused_before_it_starts(asfl: Asfl) -> None:
    refused = asfl("fleet", "--clients", "2", "--out", "/proc/nowhere")
    assert_refused(refused, "/proc/nowhere-devices': No such file")

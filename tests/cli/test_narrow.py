"""What commands print in a terminal of 60 columns: nothing is cut, and no line is longer."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from made_up import made_up_run

from asfl.cli.listing import Kind
from asfl.cli.output import console
from asfl.results.summary import Summary
from asfl.results.tables import tables_of
from conftest import Asfl

WIDTH = 60


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A terminal, and what a person sees there of an output."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr("platform.platform", lambda: "Linux")  # one long word, wherever we are

    def seen(output: str) -> list[str]:
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).splitlines()
        assert lines
        assert [line for line in lines if len(line) > WIDTH] == []
        assert "…" not in output.replace("1 … ", "").replace("= … ", "")
        return lines

    return seen


@pytest.mark.parametrize(
    "command",
    [
        *(f"list {kind}" for kind in get_args(Kind)),
        "doctor", "explain radio", "explain scenario.channel", "explain model.charged_as", "explain demo", "data show",
        "scenario", "explain cnn-digits", "advise --rounds 2",
        "decide --rounds 2 --schemes asfl,sl", "advise --time 1s --battery 1 --schemes asfl",
    ],
)  # fmt: skip
def test_commands(asfl: Asfl, narrow: Callable[[str], list[str]], command: str) -> None:
    result = asfl(*command.split())
    assert result.returncode == 0, result.stderr
    narrow(result.stdout)


def test_configurations_stay_toml(asfl: Asfl, narrow: Callable[[str], list[str]], tmp_path: Path) -> None:
    for docs in ([], ["--docs"]):
        (tmp_path / "mine.toml").write_text("\n".join(narrow(asfl("explain", "demo", *docs).stdout)), "utf-8")
        assert "is valid" in asfl("check", "mine.toml").stdout


def test_a_comparison(narrow: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        made_up_run(scheme, [0.3 + 0.01 * seed, 0.5, 0.7], seed=seed)
        for scheme in ("asfl", "acc-sfl")
        for seed in (1, 2)
    ]
    for table in tables_of(Summary.of(runs, [0.2, 0.4, 0.6])):
        console().print(table.terminal())
    lines = narrow(capsys.readouterr().out)
    assert any(line.lstrip().startswith("acc-sfl") for line in lines)

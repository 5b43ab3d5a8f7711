"""What commands print in a terminal of 60 columns: nothing is cut, and no line is longer."""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_up import made_up_run
from rich.console import Console

from asfl.cli import compare, devices
from asfl.cli.narrow import InParts, listed, wrapped
from asfl.cli.output import table
from asfl.results.summary import Summary
from conftest import Asfl

WIDTH = 60
words = st.text("abcdefgh0123456789", min_size=1, max_size=9)
cells = st.lists(words, min_size=1, max_size=6).map(" ".join)


def printed(made: Any, width: int) -> list[str]:
    out = Console(file=StringIO(), width=width)
    out.push_render_hook(InParts(out))
    out.print(made)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue().splitlines()


@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=2, max_size=4)))
def test_every_word_of_a_table_is_there(rows: list[list[str]]) -> None:
    header, *body = rows
    lines = printed(table(header, body), WIDTH)
    assert max(map(len, lines)) <= WIDTH
    found = re.findall(r"[a-h0-9]+", " ".join(lines))
    for row in rows:
        for word in " ".join(row).split():
            assert word in found


def test_parts_repeat_what_rows_are_called() -> None:
    columns = [f"quantity{number}" for number in range(9)]
    lines = printed(table(["seed", "scheme", *columns], [["1", "asfl", *columns], ["2", "sfl", *columns]]), WIDTH)
    headers = [line for line in lines if "scheme" in line]
    assert len(headers) > 1
    for begins in ("seed", "1", "2"):
        assert sum(re.sub(r"[^\w]+", " ", line).split()[:1] == [begins] for line in lines) == len(headers)
    wide = printed(table(["seed", *columns], [["1", *columns]]), 200)
    assert sum("seed" in line for line in wide) == 1


@given(st.lists(st.tuples(words, cells), min_size=1, max_size=5), st.integers(30, 80))
def test_lists_and_sentences_keep_their_words(rows: list[tuple[str, str]], width: int) -> None:
    lines = "\n".join(listed(rows, width)).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines).split() == " ".join(f"{name} {about}" for name, about in rows).split()
    assert len(list(listed(rows, None))) == len(rows)
    assert wrapped(rows[0][1], width, 3).split() == rows[0][1].split()


# ---------------------------------------------------------------------- commands
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
        *(f"list {kind}" for kind in ("schemes", "presets", "models", "channels", "datasets", "recipes")),
        "doctor", "explain radio", "explain scenario.channel", "explain model.charged_as", "config show", "data show",
        "scenario", "profile cnn-digits", "reproduce --list", "advise --rounds 2", "decide --rounds 2 --scheme asfl,sl",
        "plan --time 1s --battery 1 --scheme asfl",
    ],
)  # fmt: skip
def test_commands(asfl: Asfl, narrow: Callable[[str], list[str]], command: str) -> None:
    result = asfl(*command.split())
    assert result.returncode == 0, result.stderr
    narrow(result.stdout)


def test_configurations_stay_toml(asfl: Asfl, narrow: Callable[[str], list[str]], tmp_path: Path) -> None:
    for docs in ([], ["--docs"]):
        (tmp_path / "mine.toml").write_text("\n".join(narrow(asfl("explain", *docs).stdout)), "utf-8")
        assert "is valid" in asfl("check", "mine.toml").stdout


def test_a_comparison(narrow: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        made_up_run(scheme, [0.3 + 0.01 * seed, 0.5, 0.7], seed=seed)
        for scheme in ("asfl", "acc-sfl")
        for seed in (1, 2)
    ]
    compare._print_reached(Summary.of(runs, [0.2, 0.4, 0.6]))
    lines = narrow(capsys.readouterr().out)
    assert sum(line.lstrip().startswith("acc-sfl") for line in lines) > 1


def test_devices(asfl: Asfl, narrow: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"name": "kitchen-window-pi", "client": 3, "state": "here", "last_seen": "2026-11-18 03:42", "battery": 0.8,
           "uplink_bps": 1.2e6, "downlink_bps": 8.8e6, "client_s_per_flop": 1e-9, "faults": 12}  # fmt: skip
    monkeypatch.setattr(devices, "_devices", lambda home: [one])
    lines = narrow(asfl("devices").stdout)
    assert "kitchen-window-pi" in " ".join(lines)

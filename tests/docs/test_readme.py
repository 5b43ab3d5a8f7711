"""The README from top to bottom, as a newcomer types it: every command works after the one before it. Only shorter."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from made_up import train_here

from conftest import Asfl

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)
SMALLER = {
    "compare": ["--set", "training.batch_size=8", "--set", "model.width=0.2"],
    "report": ["--no-figures"],
    "fleet": ["--set", "training.batch_size=4", "--set", "output.track=none"],
}
"""What makes a command quick, and nothing else different."""


def shortened(line: str) -> list[str]:
    words = shlex.split(line.removeprefix("$ asfl "), comments=True)
    for number, word in enumerate(words[:-1]):
        if word == "--rounds":
            words[number + 1] = "3" if "resume" in words else "1" if "fleet" in words else "2"
        elif word == "--clients":
            words[number + 1] = "2"
    return [*words, *next((more for name, more in SMALLER.items() if name in words), [])]


def test_every_command_works_after_the_one_before_it(
    asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    for folder in ("docs/examples", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    played = []
    for language, block in BLOCK.findall((ROOT / "README.md").read_text("utf-8")):
        for line in block.splitlines() if language == "console" else []:
            if not line.startswith("$ asfl "):
                continue
            result = asfl(*shortened(line))
            assert result.returncode == 0, f"{line}\n{result.stderr}"
            assert "Traceback" not in result.stderr
            played.append(line.split()[2])
    assert {"doctor", "scenario", "run", "resume", "compare", "report", "fleet", "new", "--plugin"} <= set(played)
    assert (tmp_path / "demo-world.png").exists()
    assert (tmp_path / "runs" / "compare-demo" / "report.html").exists()
    assert (tmp_path / "runs" / "compare-demo" / "loud-seed1").is_dir()

"""Shared by all tests: small random worlds as hypothesis strategies, and a way to run the real command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Several test processes share the cores; PyTorch would start a thread per core in each of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "asfl", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("asfl")

Asfl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def asfl(tmp_path: Path) -> Asfl:
    """Run `asfl` as a user would, in an empty folder."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from asfl.cli import main; main()", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)

    return run


def assert_refused(result: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """Exit code 2, one clear message with these words, no traceback, nothing on standard output."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr, result.stderr

"""What is said about a run on standard error, without a terminal."""

import pytest
from made_up import made_up_round

from asfl.cli.progress import RunProgress


def test_the_time_left_is_told_once_it_can_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    """A display may begin with the first round that is over: how long that one took is unknown."""
    with RunProgress(3, []) as progress:
        for number in (1, 2, 3):
            progress(made_up_round(number, 0.5))
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("round 1/3: 50.0 %")
    assert "left" not in first
    assert [line.rpartition(", ")[2] for line in others] == ["0 s left", "0 s left"]

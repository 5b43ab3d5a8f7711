"""How a ServerApp is asked to end, with real signals."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from waiting import wait_until

from asfl.field.flower import stopping
from asfl.field.flower.stopping import stopping_after_the_round


@pytest.fixture
def flower() -> Iterator[list[int]]:
    """What Flower's own handlers get to see."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield seen
    for number, each in before.items():
        signal.signal(number, each)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_a_request_and_the_second_is_flowers(number: signal.Signals, flower: list[int]) -> None:
    with stopping_after_the_round() as should_stop:
        assert not should_stop()
        signal.raise_signal(number)
        assert should_stop()
        assert flower == []
        signal.raise_signal(number)
        assert flower == [number]
    signal.raise_signal(number)
    assert flower == [number, number]


def test_a_round_that_doesnt_end_is_ended(flower: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "AT_THE_LATEST_S", 0.05)
    with stopping_after_the_round():
        signal.raise_signal(signal.SIGINT)
        wait_until(lambda: flower == [signal.SIGTERM], "Flower's handler was called")


def test_in_another_thread_nothing_is_changed(flower: list[int]) -> None:
    """As in Flower's simulation."""

    def elsewhere() -> None:
        with stopping_after_the_round() as should_stop:
            signal.raise_signal(signal.SIGINT)
            assert not should_stop()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    wait_until(lambda: flower == [signal.SIGINT], "Flower's handler was called")

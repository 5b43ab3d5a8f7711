"""Candidates that take turns, and the ratio of two of them with its spread.

A ratio is taken turn by turn, between candidates that ran shortly after each other. With one thread, processor time is
measured: other programs disturb it less than the wall clock.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray

from asfl.train.fleet import keep_freed_memory

Floats = NDArray[np.float64]
Play = Callable[[], object]
"""One round, or whatever is timed."""
Timed = Callable[[], float]
"""Plays once and returns the seconds that took."""


def take_turns(candidates: Mapping[str, Timed], repeats: int) -> dict[str, Floats]:
    """Seconds of each candidate [repeats]; the first turn is a warm-up and not counted."""
    turns = [{name: play() for name, play in candidates.items()} for _ in range(repeats + 1)]
    return {name: np.array([turn[name] for turn in turns[1:]]) for name in candidates}


def ratio(slower: Floats, faster: Floats) -> str:
    """Median over the turns, and in brackets the quartiles."""
    low, middle, high = np.quantile(slower / faster, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def timed(play: Play, calls: int = 1) -> Timed:
    """Timed in this process, as the mean of a few calls if one is too short to be measured."""
    return partial(_seconds, play, calls)


@contextmanager
def training_threads(threads: int) -> Iterator[None]:
    """Set this process up as `asfl run` does; the memory setting stays."""
    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class OwnProcess:
    """A candidate in a process of its own, so that it has its own allocator; it works only when it is its turn."""

    def __init__(self, threads: int, keep_memory: bool, make: Callable[..., Play], *arguments: object) -> None:
        """`make(*arguments)` is called over there; `keep_memory`: with the memory setting of `asfl run`."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, threads, keep_memory, make, arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def __call__(self) -> float:
        self._pipe.send(True)
        return float(self._pipe.recv())

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join()


def _serve(
    pipe: "Connection[float, bool]", threads: int, keep_memory: bool, make: Callable[..., Play],
    arguments: Sequence[object],
) -> None:  # fmt: skip
    torch.set_num_threads(threads)
    if keep_memory:
        keep_freed_memory()
    play = make(*arguments)
    while pipe.recv():
        pipe.send(_seconds(play, 1))


def _seconds(play: Play, calls: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(calls):
        play()
    return (clock() - start) / calls

"""How a benchmark measures: interleaved, so that a noisy machine is noisy for everybody."""

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved_medians(candidates: Mapping[str, Callable[[], object]], repeats: int = 31) -> dict[str, float]:
    """Median seconds of each candidate, taking turns; the first turn is a warm-up and not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}

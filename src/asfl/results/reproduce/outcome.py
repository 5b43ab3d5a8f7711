"""What a recipe has to look at: the runs at one of its points, in numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from asfl.results.curves import OURS, Curve, Run
from asfl.results.summary import Summary


@dataclass(frozen=True)
class Outcome:
    """All schemes in one world."""

    preset: str
    label: str
    """What is varied, at this point: "0.1". Empty if nothing is."""
    runs: Sequence[Run]
    summary: Summary

    def accuracy_in_our_time(self, scheme: str) -> dict[int, float]:
        """By seed: how accurate a scheme is when ASFL has finished its last round; NaN if never evaluated by then."""
        ends = {run.seed: run.records[-1].total_delay_s for run in self.runs if run.scheme == OURS and run.records}
        return {
            run.seed: _accuracy_after(Curve.of(run.records), ends[run.seed])
            for run in self.runs
            if run.scheme == scheme and run.seed in ends
        }


def _accuracy_after(curve: Curve, delay_s: float) -> float:
    known = [accuracy for accuracy, at in zip(curve.accuracy, curve.delay_s, strict=True) if at <= delay_s]
    return known[-1] if known else math.nan

"""What a recipe has to look at: the runs at each of its points, and the same in numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from asfl.results.curves import Run
from asfl.results.summary import Summary, choose_targets


@dataclass(frozen=True)
class Outcome:
    """All schemes in one world."""

    preset: str
    label: str
    """What is varied, at this point: "0.1". Empty if nothing is."""
    runs: Sequence[Run]
    summary: Summary
    world: str = ""
    """Points that differ in nothing share one."""


@dataclass(frozen=True)
class Point:
    """All finished runs of a recipe in one world."""

    preset: str
    label: str
    world: str
    """The name of the world's folder."""
    runs: Sequence[Run]


@dataclass(frozen=True)
class Found:
    """What a recipe has found: all that its page and its pictures are made of."""

    recipe: str
    command: str
    """That found it."""
    points: Sequence[Point]
    otherwise: Mapping[str, "Found"] = field(default_factory=dict)
    """The same runs under other charges, by what these are called."""

    def outcomes(self) -> dict[str, list[Outcome]]:
        """By preset, in the order of the variants; all points of a preset have the same target accuracies."""
        found: dict[str, list[Outcome]] = {}
        for preset in dict.fromkeys(point.preset for point in self.points if point.runs):
            points = [point for point in self.points if point.preset == preset and point.runs]
            targets = choose_targets([run for point in points for run in point.runs])
            found[preset] = [Outcome(preset, p.label, p.runs, Summary.of(p.runs, targets), p.world) for p in points]
        return found

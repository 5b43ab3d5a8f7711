"""The numbers of a run, declared once: name, unit, words, and how they are written. Every table and axis reads this."""

import math
from dataclasses import dataclass

from asfl.config.units import number
from asfl.results.summary import Statistic


@dataclass(frozen=True)
class Quantity:
    """A number of `RunSummary`."""

    name: str
    title: str
    """At the head of a column."""
    unit: str = ""
    words: str = ""
    """Where there is room for more than the title."""
    decimals: int | None = None
    """None: three significant digits."""

    @property
    def scale(self) -> float:
        """From the number to its unit."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def in_words(self) -> str:
        return self.words or self.title

    def format(self, stat: Statistic) -> str:
        """In its unit, without the unit."""
        return amount(stat, self.scale) if self.decimals is None else share(stat, self.decimals)


ACCURACIES = (
    Quantity("final_accuracy", "at the end", "%", "accuracy", decimals=1),
    Quantity("best_accuracy", "best", "%", "best accuracy", decimals=1),
    Quantity("accuracy_in_our_time", "in ASFL's time", "%", "accuracy in the time ASFL takes", decimals=1),
    Quantity("accuracy_on_our_energy", "on ASFL's energy", "%", "accuracy on the energy ASFL takes", decimals=1),
    Quantity("uncalibrated_accuracy", "uncalibrated", "%", "accuracy with averaged norm statistics", decimals=1),
    Quantity("client_accuracy", "clients' own", "%", "accuracy of the clients' own models", decimals=1),
)
TOTALS = (Quantity("total_delay_s", "total delay", "s"), Quantity("total_energy_j", "total energy", "J"))
COSTS = (
    Quantity("delay_s", "delay", "s", "delay of a round"),
    Quantity("median_delay_s", "median", "s", "median delay of a round"),
    Quantity("delay_over", "over", "%", "delay over its budget"),
    Quantity("delay_owed", "owed", "%", "violation of the delay budget still owed"),
    Quantity("energy_j", "energy", "J", "energy of a round"),
    Quantity("median_energy_j", "median", "J", "median energy of a round"),
    Quantity("energy_over", "over", "%", "energy over its budget"),
    Quantity("energy_owed", "owed", "%", "violation of the energy budget still owed"),
)
"""What a round takes: means over rounds, and medians beside them; delay first, then energy."""
ABOUT_COSTS = (
    "over: how far the mean is beyond the budget; owed: queue after the last round / rounds, which bounds it (standard "
    "queue rule only; printed queues forget); energy: of all clients, over and owed of the worst client"
)
OF_ROUNDS = (
    Quantity("packet_error_rate", "errors", "%", "packet errors"),
    Quantity("updates_per_round", "arrived"),
    Quantity("cut", "cut"),
    Quantity("cut_moves", "moves", "%"),
    Quantity("resplit_share", "re-split", "%", "re-split share"),
    Quantity("discrepancy", "discrepancy"),
)
"""What else a round looks like: means over rounds."""
QUANTITIES = {quantity.name: quantity for quantity in (*ACCURACIES, *TOTALS, *COSTS, *OF_ROUNDS)}
CURVE_AXES = {"delay": ("delay so far", "s"), "energy": ("energy so far, all clients", "J"), "rounds": ("round", "")}
"""What accuracy is drawn against: words and unit."""
ABOUT_ROUNDS = (
    "errors: expected, of those who took part; moves: rounds with another cut than the one before; re-split: share of "
    "the delay"
)


def amount(stat: Statistic, scale: float = 1) -> str:
    """A median in its unit, with its interval if there is one."""
    if not stat.seeds:
        return "–"
    between = f" [{number(scale * stat.low)}, {number(scale * stat.high)}]"
    return number(scale * stat.median) + ("" if math.isnan(stat.low) else between)


def share(stat: Statistic, decimals: int = 1, sign: str = "") -> str:
    """A median of shares in percent and its interval, followed by the sign if one is given."""
    if not stat.seeds:
        return "–"
    ends = (stat.median, stat.low, stat.high)
    middle, low, high = (f"{round(100 * one, decimals) + 0.0:.{decimals}f}" for one in ends)  # never -0
    return middle + sign + ("" if math.isnan(stat.low) else f" [{low}, {high}]")


def partly(stat: Statistic, runs: int) -> str:
    """Said where not every seed counts."""
    return f" ({stat.seeds} of {runs} seeds)" if stat.seeds < runs else ""

"""What all rounds together may take."""

from asfl.config.fields import OffJoules, OffSecond, Section


class TotalBudgets(Section):
    """What all rounds together may take; training ends when it is used up (docs/schemes.md)."""

    total_delay_s: OffSecond = "off"
    """How long all rounds together may take. One that isn't over by then doesn't count."""
    battery_j: OffJoules = "off"
    """What each client has for all rounds: one number for all, or a list with one for each. A client whose battery is
    empty takes part no more."""

import sys
from pathlib import Path

from studies import (
    block_gap,
    device_memory,
    forms,
    gap,
    inversion,
    poison,
    printed_power,
    privacy,
    radio_worlds,
    reports,
    speed_by_cut,
)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    for study in (
        gap,
        block_gap,
        printed_power,
        forms,
        inversion,
        reports,
        privacy,
        poison,
        speed_by_cut,
        radio_worlds,
        device_memory,
    ):
        study.main(folder)


if __name__ == "__main__":
    main()

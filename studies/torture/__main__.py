"""Run every campaign, or those named; exit code 1 if anything broke.

A campaign is a module of this package with `campaign(share, folder, random) -> Counts`: `share` scales how much is
tried (1 is the full campaign), `folder` is empty and its own, `random` decides everything that is left to chance.
"""

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from studies.torture.counts import Counts

CAMPAIGNS = ("kills", "folders", "inputs", "messages", "lies", "liars", "strangers", "ports", "keys")


def main() -> int:
    parser = argparse.ArgumentParser(prog="studies.torture", description=__doc__)
    parser.add_argument("campaigns", nargs="*", default=CAMPAIGNS, metavar="CAMPAIGN", help=", ".join(CAMPAIGNS))
    parser.add_argument("--share", type=float, default=1.0, help="how much of the full campaign")
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    broken = 0
    for name in wanted.campaigns:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"asfl-{name}-") as folder:
            counts = run(name, wanted.share, Path(folder), wanted.seed)
        print(
            f"{name}: {counts.tried:,} tried, {counts.lost} lost, {counts.silent} silent, {counts.tracebacks} "
            f"tracebacks ({time.monotonic() - started:.0f} s)",
            flush=True,
        )
        for example in counts.examples:
            print(f"  {example}", flush=True)
        broken += counts.defects
    return int(broken > 0)


def run(name: str, share: float, folder: Path, seed: int) -> Counts:
    """One campaign by name."""
    module = importlib.import_module(f"studies.torture.{name}")
    counts: Counts = module.campaign(share, folder, np.random.default_rng(seed))
    return counts


if __name__ == "__main__":
    sys.exit(main())

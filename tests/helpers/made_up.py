"""Rounds and runs that were never trained, and runs that are trained without another process."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from asfl.api.run import one_by_one
from asfl.config.errors import AsflError
from asfl.costs.world import Budgets
from asfl.results.curves import Run
from asfl.runs.files import write_sealed
from asfl.runs.jobs import Job
from asfl.runs.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest, write_manifest
from asfl.runs.records import Journal, RoundRecord, read_records, read_rounds


def made_up_round(
    number: int,
    accuracy: float | None = None,
    *,
    delay_s: float = 2.0,
    energy_j: float = 1.0,
    cut: int | list[int] | None = 3,
    resplit_delay_s: float = 0.0,
    arrived: Sequence[int] = (1, 1, 0),
) -> RoundRecord:
    """A round of three clients, the last of them without a block; every round before cost as much."""
    return RoundRecord(
        round=number,
        cut=cut,
        rb_count=[1.0, 2.0, 0.0],
        tx_power_w=[1.0, 1.0, 0.0],
        packet_error_rate=[0.1, 0.3, 1.0],
        arrived=list(arrived),
        delay_s=delay_s,
        resplit_delay_s=resplit_delay_s,
        uplink_stage_delay_s=delay_s / 2,
        server_stage_delay_s=delay_s / 2,
        energy_j=[energy_j, 2 * energy_j, 0.0],
        resplit_energy_j=[0.0] * 3,
        total_delay_s=number * delay_s,
        total_energy_j=number * 3 * energy_j,
        delay_queue=0.5,
        energy_queue=[0.1, 0.2, 0.3],
        participation_queue=[0.0] * 3,
        train_loss=1.0,
        update_norm2=[1.0, 1.0, None],
        update_scale=1.0,
        spread=0.4 * number,
        discrepancy=0.5 * number,
        resplit_shift=0.0,
        accuracy=accuracy,
        test_loss=None if accuracy is None else 1.0,
        client_accuracy=None if accuracy is None else accuracy / 2,
        uncalibrated_accuracy=None,
    )


def made_up_run(
    scheme: str,
    accuracies: Sequence[float | None],
    *,
    seed: int = 1,
    delay_s: float = 2.0,
    energy_j: float = 1.0,
    cut: int | list[int] | None = 3,
) -> Run:
    records = [
        made_up_round(number, accuracy, delay_s=delay_s, energy_j=energy_j, cut=cut)
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    return Run(scheme, seed, records, Budgets(1.6, 1.0))


def leave_run(folder: Path, manifest: Manifest, more: Sequence[RoundRecord] = (), *, finished: bool = False) -> None:
    """Write a run folder as a run would, or add rounds to it."""
    if not (folder / MANIFEST_FILE).exists():
        write_manifest(folder, manifest)
    fingerprint = read_manifest(folder).fingerprint
    rounds = read_rounds(folder, fingerprint)
    journal = Journal(folder, rounds, len(rounds.lines))
    for record in more:
        journal.append(record)
    if finished:
        played = len(rounds.lines) + len(more)
        write_sealed(folder / MODEL_FILE, b"", round=played, fingerprint=fingerprint, records=journal.checksum)


def pretend(job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> bool:
    """Leave a run folder behind without training; some schemes come to grief after their first round."""
    config = job.config.for_scheme(job.scheme)
    manifest = Manifest(config, job.scheme, Budgets(1.6, 1.0), job.threads, {}, job.recorded)
    leave_run(job.folder, manifest)
    for number in range(len(read_records(job.folder)) + 1, job.config.training.rounds + 1):
        record = made_up_round(number, min(0.1 * number, 1.0))
        leave_run(job.folder, manifest, [record])
        on_round(record)
        if job.scheme == "epsl":
            os.kill(os.getpid(), signal.SIGKILL)
        if job.scheme == "sfl":
            raise AsflError("the loss is not a number")
        if job.scheme == "acc-sfl":
            raise ZeroDivisionError("division by zero")
        if job.scheme in ("sl", "asfl-joint"):
            time.sleep(0.05)
        if should_stop():
            return False
    leave_run(job.folder, manifest, finished=True)
    return True


train_here = one_by_one
"""An engine in this process: for tests of what comes before and after."""

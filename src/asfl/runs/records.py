"""What a round leaves behind, as one line of JSON."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from asfl.config.errors import AsflError
from asfl.costs.decision import Decision

RECORDS_FILE = "rounds.jsonl"
_MAY_BE_INFINITE = (
    "delay_s", "resplit_delay_s", "uplink_stage_delay_s", "server_stage_delay_s", "total_delay_s",
    "energy_j", "resplit_energy_j", "total_energy_j",
)  # fmt: skip
"""On a dead link; null in JSON, which knows no infinity."""


@dataclass(frozen=True)
class RoundRecord:
    """One round of one run. Lists have one entry per client; what doesn't exist is None."""

    round: int
    """Counted from 1."""
    cut: int | list[int] | None
    """One for all, one per client (ACC-SFL), or None (FedAvg)."""
    rb_count: list[float]
    tx_power_w: list[float]
    packet_error_rate: list[float]
    """Expected; 1 for a client without resource block."""
    arrived: list[int]
    """1 if its packet arrived, else 0."""
    delay_s: float
    resplit_delay_s: float
    """Stage 1: part of `delay_s`, like the two below."""
    uplink_stage_delay_s: float
    server_stage_delay_s: float
    energy_j: list[float]
    resplit_energy_j: list[float]
    """Part of `energy_j`."""
    total_delay_s: float
    """Of all rounds so far; simulated seconds."""
    total_energy_j: float
    """Of all rounds and clients so far."""
    delay_queue: float
    """After the round; so are the others."""
    energy_queue: list[float]
    participation_queue: list[float]
    train_loss: float | None
    """Mean over the clients that arrived; None if nobody did."""
    update_norm2: list[float | None]
    """‖Δ_n‖² of those who arrived."""
    update_scale: float
    """U, the running mean of ‖Δ‖² after the round."""
    spread: float
    """(1/N) Σ_n ‖w̄^c − w_n^c‖² in stage 2, as the server knows it (sampled); 0 where client sides are averaged."""
    discrepancy: float
    """Spread plus the share of updates expected to be lost, in updates: the corrected objective, g_obj."""
    resplit_shift: float
    """‖·‖² by which stage 1 moved the average model."""
    accuracy: float | None
    """Of the average model on the test images, 0 … 1, with norm statistics measured anew (`asfl.train.calibrate`); None
    in rounds that aren't evaluated."""
    test_loss: float | None
    """Of the same."""
    client_accuracy: float | None
    """Mean over clients of [own client side; server side], each with the running statistics that come with them."""
    uncalibrated_accuracy: float | None = None
    """Like `accuracy`, but with the averaged running statistics; None in records of earlier versions, whose `accuracy`
    was with statistics that hadn't forgotten their start."""
    faults: list[dict[str, str | int]] | None = None
    """Clients that were lost: client, round (counted from 1), stage, reason. None if nobody was; only real clients
    (`asfl.field`) can be."""
    measured: dict[str, list[float | None]] | None = None
    """With `field.costs = "measured"`: what the server knows of links and processors after the round, and how well
    (docs/field.md). Then delays and energies are real ones."""

    @property
    def arrived_count(self) -> int:
        return sum(self.arrived)

    @property
    def scheduled_count(self) -> int:
        return sum(count > 0 for count in self.rb_count)

    @property
    def mean_cut(self) -> float:
        """Mean over the clients that took part; NaN for FedAvg."""
        if self.cut is None:
            return math.nan
        if isinstance(self.cut, int):
            return float(self.cut)
        served = [cut for cut, count in zip(self.cut, self.rb_count, strict=True) if count > 0]
        return sum(served) / len(served) if served else math.nan

    @property
    def mean_packet_error_rate(self) -> float:
        """Over the clients that took part; 1 if nobody did."""
        served = [s for s, count in zip(self.packet_error_rate, self.rb_count, strict=True) if count > 0]
        return sum(served) / len(served) if served else 1.0

    @property
    def decision(self) -> Decision:
        """What was decided; only of schemes with one cut for all."""
        assert isinstance(self.cut, int)
        return Decision(self.cut, np.array(self.rb_count), np.array(self.tx_power_w))

    def to_line(self) -> str:
        plain = {key: _plain(value) for key, value in asdict(self).items()}
        for name in ("faults", "measured"):
            if plain[name] is None:
                del plain[name]
        return json.dumps(plain, allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "RoundRecord":
        data: dict[str, Any] = json.loads(line)
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in data.items() if name in known}
        for name in _MAY_BE_INFINITE:
            value = values.get(name, 0.0)
            is_list = isinstance(value, list)
            finite = [math.inf if entry is None else entry for entry in (value if is_list else [value])]
            values[name] = finite if is_list else finite[0]
        return cls(**values)


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: both are null."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_records(folder: Path) -> list[RoundRecord]:
    """The rounds of a run folder, in order; a last line that was never finished is left out."""
    file = folder / RECORDS_FILE
    try:
        lines = file.read_text("utf-8").splitlines(keepends=True)
    except OSError as error:
        raise AsflError(f"{folder} is not a run folder: can't read {RECORDS_FILE} ({error.strerror})") from None
    return list(_parse(file, lines))


def records_so_far(folder: Path) -> list[RoundRecord]:
    """The same; none if no round has been played there yet."""
    return read_records(folder) if (folder / RECORDS_FILE).exists() else []


def _parse(file: Path, lines: Iterable[str]) -> Iterator[RoundRecord]:
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            return
        try:
            record = RoundRecord.from_line(line)
        except (ValueError, TypeError) as error:
            raise AsflError(f"{file}, line {number}: not the record of a round ({error})") from None
        if record.round != number:
            raise AsflError(f"{file}, line {number}: round {record.round} where round {number} belongs")
        yield record

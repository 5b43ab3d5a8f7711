"""What a round leaves behind, as one line of JSON; and all rounds of a run, in order.

The last entry of a line is a checksum of the line and of the run's fingerprint. So a line that was changed or belongs
to another run is noticed; rounds count from 1, so one that is missing or comes twice is noticed, too.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from pydantic import AfterValidator, BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from asfl.config.errors import AsflError
from asfl.config.files import MAX_TEXT_BYTES, open_to_read
from asfl.costs.round import Decision
from asfl.runs.files import append_line, write_whole
from asfl.runs.manifest import read_manifest

RECORDS_FILE = "rounds.jsonl"
DIVERGED = "training has diverged"
"""What the reason for a failure says if numbers went to infinity: the setting is to blame, not the machine."""

BY_CLIENT = {"by_client": True}
"""Of a field: a list with one entry per client, in every record."""
SIX_DIGITS, ALL_DIGITS = {"digits": 6}, {"digits": 17}
"""Of a field: archives keep it (`to_columns`), with so many digits. Accuracies have all: a target is reached or not."""
LEARNING, COST, QUEUES = {"group": "learning"}, {"group": "cost"}, {"group": "queues"}
"""Of a field: trackers plot it, in this group (`asfl.runs.callbacks.scalars`)."""
_MEASURED = {"uplink_bps", "uplink_bps_error"}
"""What is known of links, wherever anything is."""

LARGEST = 1e150
"""Of all finite numbers: squares and sums of them are finite, too. No round comes near to it."""


def _or(meaning: float) -> BeforeValidator:
    """JSON knows no infinity and no NaN: null stands for this."""
    return BeforeValidator(lambda value: meaning if value is None else value)


def _no_larger(value: float) -> float:
    if LARGEST < abs(value) < math.inf:
        raise ValueError(f"beyond ±{LARGEST:g}")
    return value


Number = Annotated[float, Strict(), Field(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Strict(), Field(ge=0, le=LARGEST)]
OrInfinite = Annotated[float, Strict(), Field(ge=-LARGEST), AfterValidator(_no_larger), _or(math.inf)]
"""Infinite on a dead link."""
AmountOrInfinite = Annotated[float, Strict(), Field(ge=0), AfterValidator(_no_larger), _or(math.inf)]
OrNan = Annotated[float, Strict(), AfterValidator(_no_larger), _or(math.nan)]
"""NaN if it couldn't be computed."""
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Cut = Annotated[int, Strict(), Field(ge=0, le=10_000)]
Count = Annotated[int, Strict(), Field(ge=0, le=10**9)]


class Fault(TypedDict):
    """A client that was lost."""

    client: Count
    round: Count
    """Counted from 1."""
    stage: str
    reason: str


@dataclass(frozen=True)
class RoundRecord:
    """One round of one run. Lists have one entry per client; what doesn't exist is None."""

    round: Annotated[int, Strict(), Field(ge=1, le=10**9)] = field(metadata=SIX_DIGITS)
    """Counted from 1."""
    cut: Cut | list[Cut] | None = field(metadata=SIX_DIGITS)
    """One for all, one per client (ACC-SFL), or None (FedAvg)."""
    rb_count: Annotated[list[Annotated[Amount, Field(le=10**6)]], MinLen(1)] = field(metadata=BY_CLIENT | SIX_DIGITS)
    tx_power_w: list[Amount] = field(metadata=BY_CLIENT | SIX_DIGITS)
    packet_error_rate: list[Share] = field(metadata=BY_CLIENT | SIX_DIGITS)
    """Expected; 1 for a client without resource block."""
    arrived: list[Annotated[int, Strict(), Field(ge=0, le=1)]] = field(metadata=BY_CLIENT | SIX_DIGITS)
    """1 if its packet arrived, else 0."""
    delay_s: AmountOrInfinite = field(metadata=SIX_DIGITS | COST)
    resplit_delay_s: AmountOrInfinite = field(metadata=SIX_DIGITS | COST)
    """Stage 1: part of `delay_s`, like the two below."""
    uplink_stage_delay_s: AmountOrInfinite = field(metadata=COST)
    server_stage_delay_s: AmountOrInfinite = field(metadata=COST)
    energy_j: list[OrInfinite] = field(metadata=BY_CLIENT | SIX_DIGITS | COST)
    resplit_energy_j: list[OrInfinite] = field(metadata=BY_CLIENT | COST)
    """Part of `energy_j`; below 0 only where `decision.resplit_energy` is "signed"."""
    total_delay_s: AmountOrInfinite = field(metadata=SIX_DIGITS | COST)
    """Of all rounds so far; simulated seconds."""
    total_energy_j: OrInfinite = field(metadata=SIX_DIGITS | COST)
    """Of all rounds and clients so far."""
    delay_queue: AmountOrInfinite = field(metadata=QUEUES)
    """After the round; so are the others."""
    energy_queue: list[AmountOrInfinite] = field(metadata=BY_CLIENT | QUEUES)
    participation_queue: list[AmountOrInfinite] = field(metadata=BY_CLIENT | QUEUES)
    train_loss: Number | None = field(metadata=LEARNING)
    """Mean over the clients that arrived; None if no client did."""
    update_norm2: list[Amount | None] = field(metadata=BY_CLIENT)
    """‖Δ_n‖² of those who arrived."""
    update_scale: OrNan = field(metadata=LEARNING)
    """U, the running mean of ‖Δ‖² after the round."""
    spread: OrNan = field(metadata=SIX_DIGITS | LEARNING)
    """(1/N) Σ_n ‖w̄^c − w_n^c‖² in stage 2, as the server knows it (sampled); 0 where client sides are averaged."""
    discrepancy: OrNan = field(metadata=SIX_DIGITS | LEARNING)
    """Spread plus the share of updates expected to be lost, in updates: the corrected objective, g_obj."""
    resplit_shift: OrNan = field(metadata=LEARNING)
    """‖·‖² by which stage 1 moved the average model."""
    accuracy: Share | None = field(metadata=ALL_DIGITS | LEARNING)
    """Of the average model on the test images, 0 … 1, with norm statistics measured anew (`asfl.train.evaluate`); None
    in rounds that aren't evaluated."""
    test_loss: Number | None = field(metadata=LEARNING)
    """Of the same."""
    client_accuracy: Share | None = field(metadata=ALL_DIGITS | LEARNING)
    """Mean over clients of [own client side; server side], each with the running statistics that come with them."""
    uncalibrated_accuracy: Share | None = field(metadata=ALL_DIGITS | LEARNING)
    """Like `accuracy`, but with the averaged running statistics."""
    rb_owner: list[Count | None] | None = field(default=None, metadata=SIX_DIGITS)
    """[K] the owner of each resource block, None: no client; only where blocks differ, and clients don't take turns."""
    synced: Cut | None = field(default=None, metadata=SIX_DIGITS)
    """How many client-side layers were averaged at the end of the round; like the two below only in schemes that decide
    more than the paper's (docs/schemes.md)."""
    bits: list[Annotated[int, Strict(), Field(ge=4, le=32)]] | None = field(default=None, metadata=SIX_DIGITS)
    """Of every value that crossed."""
    noise_scale: Amount | None = None
    """B: at how many mini-batches noise and signal of the gradient are equal, as the server saw it before the round."""
    epsilon: Amount | None = None
    """ε of the client that has revealed most so far, at δ = 1e-5; only with noise (docs/security.md). Null in
    JSON if only activations or only updates are noisy: then nothing is guaranteed."""
    time_left_s: Amount | None = None
    """Of `budget.total_delay_s`, after the round; None without such a budget."""
    battery_left_j: list[Amount] | None = None
    """Of `budget.battery_j`; None without such a budget."""
    batch: list[Annotated[int, Strict(), Field(ge=1, le=10**9)]] | None = field(default=None, metadata=SIX_DIGITS)
    """Samples in each client's mini-batch, in schemes that decide it (HASFL)."""
    device_accuracy: list[Share | None] | None = None
    """As each device says it is on images that only it has: claims, of which `accuracy` is the mean."""
    faults: list[Fault] | None = None
    """Clients that were lost: client, round (counted from 1), stage, reason. None if no client was; only real clients
    (`asfl.field`) can be."""
    measured: dict[str, list[Number | None]] | None = None
    """With `field.costs = "measured"`: what the server knows of links and processors after the round, and how well
    (docs/field.md). Then delays and energies are real ones."""
    gradient: dict[str, Number] | None = None
    """Of the average model after the round, in a few rounds of ASFL: what Theorem 1 speaks of (`asfl.train.evaluate`).
    norm2: ‖∇F(w̄)‖², unbiased; loss: F(w̄); noise2, client_norm2, smoothness: σ², ψ² and L as seen there, of the client
    that has most."""

    @property
    def arrived_count(self) -> int:
        return sum(self.arrived)

    @property
    def uses_up_the_budget(self) -> bool:
        """Whether no other round can follow, however many are wished."""
        return self.time_left_s == 0 or (self.battery_left_j is not None and not any(self.battery_left_j))

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
    def mean_bits(self) -> float:
        """Over the clients that took part; NaN if no client did."""
        served = [of for of, count in zip(self.bits or [32] * len(self.rb_count), self.rb_count, strict=True) if count]
        return sum(served) / len(served) if served else math.nan

    @property
    def mean_packet_error_rate(self) -> float:
        """Over the clients that took part; 1 if no client did."""
        served = [s for s, count in zip(self.packet_error_rate, self.rb_count, strict=True) if count > 0]
        return sum(served) / len(served) if served else 1.0

    @property
    def decision(self) -> Decision:
        """What was decided; only of schemes with one cut for all."""
        assert isinstance(self.cut, int)
        return Decision(self.cut, np.array(self.rb_count), np.array(self.tx_power_w))

    def to_line(self) -> str:
        """Without the checksum, which a line in a run folder has."""
        plain = {key: _plain(value) for key, value in asdict(self).items()}
        for one in fields(self):
            if one.default is None and getattr(self, one.name) is None:
                del plain[one.name]
        return json.dumps(plain, allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> "RoundRecord":
        """Every value has a type and a range; a ValueError names the first that hasn't."""
        try:
            data = json.loads(line, parse_constant=_no_constant)
        except RecursionError:
            raise ValueError("not a line of a few numbers") from None
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        known = {field.name for field in fields(cls)}
        try:
            record = _reader().validate_python({name: value for name, value in data.items() if name in known})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        lengths = {len(getattr(record, name)) for name in by_client_fields()}
        by_client = (record.cut, record.bits, record.battery_left_j, record.batch, *(record.measured or {}).values())
        lengths |= {len(each) for each in by_client if isinstance(each, list)}
        if record.measured and not record.measured.keys() >= _MEASURED:
            raise ValueError(f"measured: without {' and '.join(sorted(_MEASURED))}")
        if len(lengths) > 1:
            raise ValueError("lists of different lengths, where each has one entry per client")
        if record.rb_owner is not None:
            owned = Counter(owner for owner in record.rb_owner if owner is not None)
            if [float(owned[client]) for client in range(len(record.rb_count))] != record.rb_count:
                raise ValueError("rb_owner: not as many blocks of each client as rb_count says")
        return record


def by_client_fields() -> list[str]:
    return [one.name for one in fields(RoundRecord) if "by_client" in one.metadata]


def to_columns(records: Sequence[RoundRecord]) -> dict[str, list[Any]]:
    """Rounds as plain JSON by field, as far as archives keep them."""
    plain = [json.loads(record.to_line()) for record in records]
    kept = {one.name: one.metadata["digits"] for one in fields(RoundRecord) if "digits" in one.metadata}
    return {name: [_rounded(row.get(name), digits) for row in plain] for name, digits in kept.items()}


def from_columns(columns: Mapping[str, Sequence[Any]]) -> list[RoundRecord]:
    """Rounds as an archive has them; what it doesn't keep is None, infinite or NaN."""
    records = []
    for row in zip(*columns.values(), strict=True):
        known = dict(zip(columns, row, strict=True))
        clients = len(known["rb_count"])
        blank: dict[str, Any] = {one.name: None for one in fields(RoundRecord) if one.default is MISSING}
        blank |= {name: [None] * clients for name in by_client_fields()}
        records.append(RoundRecord.from_line(json.dumps({**blank, "tx_power_w": [0.0] * clients, **known})))
    return records


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


@cache
def _reader() -> TypeAdapter[RoundRecord]:
    return TypeAdapter(RoundRecord)


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: both are null."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---------------------------------------------------------------------- all rounds of a run
_LINE = re.compile(rb'(\{.*), "checksum": "([0-9a-f]{16})"\}')


def _checksum(of: str, body: bytes) -> str:
    return hashlib.sha256(of.encode() + body).hexdigest()[:16]


@dataclass(frozen=True)
class Rounds:
    """The rounds of a folder as far as they are intact, and what is wrong behind them."""

    fingerprint: str
    """Of the run."""
    records: list[RoundRecord] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)
    problem: str = ""
    """Why the next line isn't taken; empty if there is none, or one that was never finished."""
    written: int = 0
    """How many lines there are, good or bad."""
    torn: bool = False
    """Whether another line was begun, and never finished."""

    def checksum(self, count: int) -> str:
        """Of the last of so many rounds."""
        return self.checksums[count - 1] if count else self.fingerprint[:16]

    def are_all(self, wished: int) -> bool:
        """Whether these are as many as wished, or as many as total budgets allow."""
        return len(self.lines) == wished or (bool(self.records) and self.records[-1].uses_up_the_budget)


class Journal:
    """rounds.jsonl while rounds are added to it."""

    def __init__(self, folder: Path, rounds: Rounds, count: int) -> None:
        """Keep so many rounds, to the byte; what comes after them goes."""
        self._file, self._fingerprint, self.checksum = folder / RECORDS_FILE, rounds.fingerprint, rounds.checksum(count)
        kept = b"".join(rounds.lines[:count])
        if not self._file.is_file() or self._file.stat().st_size != len(kept) or self._file.read_bytes() != kept:
            write_whole(self._file, kept)

    def append(self, record: RoundRecord) -> None:
        body = record.to_line().rstrip("\n")
        checksum = _checksum(self._fingerprint, body.encode())
        append_line(self._file, f'{body[:-1]}, "checksum": "{checksum}"}}\n')
        self.checksum = checksum


def read_rounds(folder: Path, fingerprint: str) -> Rounds:
    """The rounds of the run with this fingerprint; nothing is raised but for a file that can't be read."""
    file, found = folder / RECORDS_FILE, Rounds(fingerprint)
    problem, written, torn = "", 0, False
    try:
        with open_to_read(file) as content:
            while line := content.readline(MAX_TEXT_BYTES):
                torn = not line.endswith(b"\n")
                written += not torn
                if not problem and (not torn or len(line) == MAX_TEXT_BYTES):
                    problem = _take(line.removesuffix(b"\n"), found)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise AsflError(f"can't read {file}: {error.strerror}") from None
    return replace(found, problem=problem, written=written, torn=torn)


def _take(line: bytes, into: Rounds) -> str:
    """Add a line to the rounds before it, or say what is wrong with it."""
    number = len(into.lines) + 1
    match = _LINE.fullmatch(line)
    if match is None:
        return f"line {number}: not the record of a round with its checksum"
    body, checksum = match[1] + b"}", match[2].decode()
    if checksum != _checksum(into.fingerprint, body):
        return f"line {number}: its checksum doesn't match"
    try:
        record = RoundRecord.from_line(body)
    except ValueError as error:
        return f"line {number}: not the record of a round ({error})"
    if record.round != number:
        return f"line {number}: round {record.round} where round {number} belongs"
    into.records.append(record)
    into.lines.append(line + b"\n")
    into.checksums.append(checksum)
    return ""


def read_records(folder: Path) -> list[RoundRecord]:
    """The rounds of a run folder, in order; a last line that was never finished is left out."""
    if not (folder / RECORDS_FILE).exists():
        raise AsflError(f"{folder} is not a run folder: it has no {RECORDS_FILE}")
    rounds = read_rounds(folder, read_manifest(folder).fingerprint)
    if rounds.problem:
        raise AsflError(
            f"{folder / RECORDS_FILE}, {rounds.problem}: the file was changed or damaged after it was written; "
            "asfl check says what is intact, asfl resume repairs it"
        )
    return rounds.records


def records_so_far(folder: Path) -> list[RoundRecord]:
    """The rounds that are there and intact; none if no round has been played yet."""
    if not (folder / RECORDS_FILE).exists():
        return []
    return read_rounds(folder, read_manifest(folder).fingerprint).records

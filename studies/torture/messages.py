"""Damaged and invented messages: each is either refused with one sentence, or is a message whose numbers are valid.

A message is damaged in its bytes (flipped, cut, doubled, mixed with another), or in its header, where any value may
become any other. Some go to a client too, which must answer every one, and go on as if nothing had been.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.field import messages as msg
from asfl.field.client import ClientNode
from asfl.field.wire import MAGIC, MOST_SQUARE, VERSION, Message, decode, encode
from asfl.train.fleet import FirstLayers, Packet, Projections
from asfl.train.optimizers import OptimizerState
from asfl.train.quantise import Quantised, QuantisedLayers
from asfl.train.signals import Task
from asfl.train.state import ModelVectors
from studies.torture.counts import Counts

MESSAGES, TO_A_CLIENT = 100_000, 0.02
"""How many in the full campaign, and the share that a client is asked."""
_PREFIX = struct.Struct("<4sII")
Random = np.random.Generator
Damage = Callable[[bytes, Random], bytes]

_ODD_VALUES: list[Any] = [
    None, True, -1, 0, 1, 1 << 40, 1 << 70, -(1 << 70), 1e300, -1e300, 0.5, "", "a", "\x00", "x" * 3000, [], {}, [[]],
    {"a": 1}, [0, 1, 2], "float32", "int64", "carry.0", "norm2",
]  # fmt: skip
_ODD_NUMBERS = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e7, -1e-45, -1.0], dtype=np.float32)


def campaign(share: float, folder: Path, random: Random) -> Counts:
    counts, originals = Counts(), [encode(message) for message in _every_message()]
    node = _client()
    asked = [place for place, data in enumerate(originals) if isinstance(decode(data, Message), msg.Request)]
    for _ in range(round(share * MESSAGES)):
        counts.tried += 1
        to_client = random.random() < TO_A_CLIENT
        place = random.choice(asked) if to_client else random.integers(len(originals))
        data = originals[place]
        for _ in range(random.integers(1, 4)):
            data = _DAMAGES[random.integers(len(_DAMAGES))](data, random)
        try:
            if to_client:
                decode(node.answer(data), msg.Answer)
            else:
                _check(decode(data, Message), counts)
        except AsflError as error:
            if len(str(error)) > 1000 or to_client:  # a client answers whatever comes, and can be understood
                counts.defect("silent", f"{str(error)[:200]}")
        except Exception as error:
            counts.defect("tracebacks", f"{error!r}: {data[:80]!r}")
    return counts


def _check(message: Message, counts: Counts) -> None:
    """What was accepted can be sent again, and every number in it is in its range."""
    encode(message)
    if isinstance(message, msg.Update) and not 0 <= float(message.norm2) <= MOST_SQUARE:
        counts.defect("silent", f"norm2 = {float(message.norm2)} was accepted")
    for name, tensor in _tensors(message):
        if tensor.is_floating_point() and not (tensor.abs() <= MOST_SQUARE).all():
            counts.defect("silent", f"{message.name}: {name} was accepted")


def _tensors(value: Any, name: str = "") -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [(name, value)]
    parts = value if isinstance(value, tuple) else vars(value).values() if hasattr(value, "__dict__") else ()
    return [found for part in parts for found in _tensors(part, type(value).__name__)]


# ---------------------------------------------------------------------- damage
def _flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for place in random.integers(max(len(data), 1), size=random.integers(1, 9)):
        if data:
            changed[place] = random.integers(256)
    return bytes(changed)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.integers(len(data) + 1)]


def _grow(data: bytes, random: Random) -> bytes:
    return data + random.bytes(int(random.integers(1, 200)))


def _move(data: bytes, random: Random) -> bytes:
    first, last = np.sort(random.integers(len(data) + 1, size=2))
    return data[first:last] + data[:first] + data[last:]


def _odd_numbers(data: bytes, random: Random) -> bytes:
    """Numbers of four bytes somewhere behind the header."""
    if len(data) < _PREFIX.size + 8:
        return data
    start = _PREFIX.size + _PREFIX.unpack_from(data)[2]
    places = np.arange(start, len(data) - 3, 4)
    if not 0 < start < len(data) or not places.size:
        return data
    changed, place = bytearray(data), int(random.choice(places))
    changed[place : place + 4] = random.choice(_ODD_NUMBERS).tobytes()
    return bytes(changed)


def _odd_header(data: bytes, random: Random) -> bytes:
    """Another value somewhere in the header, or another name."""
    try:
        length = _PREFIX.unpack_from(data)[2]
        header = json.loads(data[_PREFIX.size : _PREFIX.size + length])
    except (ValueError, struct.error, RecursionError):
        return data
    _change_somewhere(header, random)
    text = json.dumps(header).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % 64)
    return _PREFIX.pack(MAGIC, VERSION, len(text)) + text + data[_PREFIX.size + length :]


def _change_somewhere(value: Any, random: Random) -> None:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys:
        return
    key = keys[random.integers(len(keys))]
    if isinstance(value[key], dict | list) and random.random() < 0.8:
        _change_somewhere(value[key], random)
        return
    odd = _ODD_VALUES[random.integers(len(_ODD_VALUES))]
    if isinstance(value, dict) and random.random() < 0.2:
        value[str(odd)[:70]] = value.pop(key)
    else:
        value[key] = odd


_DAMAGES: list[Damage] = [_flip, _cut, _grow, _move, _odd_numbers, _odd_header, _odd_header, _odd_header]


# ---------------------------------------------------------------------- what is damaged
def _every_message() -> list[Message]:
    """One of each, and of those with optional parts one with them."""
    vector, three = torch.ones(5), torch.ones(3)
    side, layers = ModelVectors(torch.ones(6), three), FirstLayers(torch.ones(6), three)
    memory, octets = OptimizerState(torch.ones(2, 6), np.ones(3, np.int64)), torch.zeros(7, dtype=torch.uint8)
    coded = Quantised(octets, vector, vector, 8, (7, 1))
    few = FirstLayers(QuantisedLayers(octets, vector, vector, 8, octets), three)
    task, carry, labels = Task(1, 0, 1), (torch.ones(4, 2), torch.ones(4, 3)), torch.zeros(4, dtype=torch.uint8)
    return [
        msg.Agreement(load_config("demo").config, "asfl", 1).welcome(0), msg.Ready("node"),
        msg.Refusal("no"), msg.Where(2, 3), msg.Side(layers), msg.Side(few), msg.Side(), msg.ClientState(side, memory),
        msg.Activations(Packet(carry, labels), busy_s=0.5, energy_j=2.0), msg.Update(torch.tensor(1.0)),
        msg.Activations(Packet((coded,), labels, torch.tensor(0.1))), msg.Probed(octets), msg.Values(vector),
        msg.Update(torch.tensor(1.0), torch.tensor(0.5)), msg.Projected(Projections(octets.short(), vector)),
        msg.Probed(octets, torch.ones(2, 3, dtype=torch.float64)), msg.Sync(1, side, memory, round=0),
        msg.Grow(2, side, round=1, after=0), msg.Shrink(1, True, round=1), msg.Forward(task, layers, round=1),
        msg.Forward(task, few, round=1), msg.Backward(task, carry, round=1, after=1), msg.Share(1, few, round=1),
        msg.Learn(task, layers, round=1, after=0), msg.Upload(task, vector, round=1), msg.Give(task, round=1, after=1),
        msg.Moved(task, round=1), msg.Sample(octets, round=1), msg.Project(1, round=1), msg.Gather(True, round=1),
        msg.Ping(), msg.Probe(100), msg.Bye(),
    ]  # fmt: skip


def _client() -> ClientNode:
    config = load_config("demo", ["model.width=0.1", "training.batch_size=8"]).config
    return ClientNode(msg.Agreement(config, "asfl", 1).welcome(0))

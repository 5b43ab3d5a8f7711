"""Messages as dataclasses: what is declared comes back, whatever else arrives is refused where it is decoded."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st
from small_runs import agreement_of, tiny

from asfl.config import Deadlines
from asfl.config.errors import AsflError
from asfl.field import codec, messages as msg
from asfl.field.wire import Json, Message, WireError, decode, encode, pack, unpack
from asfl.train.layout import ModelVectors

SIDE = ModelVectors(torch.randn(5), torch.randn(2))
MEMORY = msg.Memory(torch.randn(2, 5), torch.arange(4))
CODES = msg.Codes(torch.arange(5, dtype=torch.uint8), torch.randn(3), torch.rand(3))
COST: dict[str, Any] = {"busy_s": 0.25, "energy_j": 3.0, "battery": 0.5}
NOW: dict[str, Any] = {"round": 3, "after": 2}
IMAGES = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
EXAMPLES: list[Message] = [
    agreement_of(tiny(), "asfl").welcome(2),
    msg.Ready("one"),
    msg.Refusal("no", **COST),
    msg.Where(3, 7, **COST),
    msg.Where(0),
    msg.Where(3, 7, 120, **COST),
    msg.Calibrate(SIDE, **NOW),
    msg.Calibrated(torch.ones(5)),
    msg.Score(SIDE, **NOW),
    msg.Scored(40, 30, 0.5, **COST),
    msg.Side(SIDE, **COST),
    msg.Side(),
    msg.ClientState(SIDE, MEMORY),
    msg.Activations(torch.arange(2), (IMAGES, torch.ones(2, 1)), **COST),
    msg.Activations(torch.arange(2), (), (CODES,), torch.tensor(0.5), **COST),
    msg.Update(torch.tensor(1.5)),
    msg.Update(torch.tensor(1.5), torch.tensor(0.5)),
    msg.Values(torch.randn(9)),
    msg.Projected(torch.zeros(8, dtype=torch.uint8), torch.ones(2)),
    msg.Probed(torch.zeros(9, dtype=torch.uint8), torch.ones(2, 4, dtype=torch.float64)),
    msg.Sync(3, SIDE, MEMORY, **NOW),
    msg.Sync(3, SIDE),
    msg.Grow(3, SIDE, **NOW),
    msg.Shrink(3, send=True, **NOW),
    msg.Forward(0, 3, SIDE, **NOW),
    msg.Forward(1, 3, **NOW),
    msg.Forward(1, 3, bits=4, **NOW),
    msg.Upload(2, 8, torch.randn(5), **NOW),
    msg.Uploaded(torch.randn(2), torch.randn(5), **COST),
    msg.Uploaded(torch.randn(2), codes=CODES, **COST),
    msg.Share(2, 4, torch.randn(2), codes=CODES, **NOW),
    msg.Backward(0, 3, (IMAGES,), **NOW),
    msg.Backward(0, 3, (), (CODES, CODES), **NOW),
    msg.Learn(0, SIDE, **NOW),
    msg.Give(**NOW),
    msg.Moved(**NOW),
    msg.Sample(torch.ones(4, dtype=torch.uint8), **NOW),
    msg.Project(2, **NOW),
    msg.Gather(memory=False, **NOW),
    msg.Ping(),
    msg.Probe(9, compute=True, data=torch.zeros(3, dtype=torch.uint8)),
    msg.Bye(),
]


def leaves(message: Message) -> Iterator[tuple[str, object]]:
    for name, leaf in codec._leaves("", message):
        yield name, (leaf.tolist(), leaf.dtype, leaf.stride()) if isinstance(leaf, torch.Tensor) else leaf


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.name)
def test_what_is_sent_comes_back(message: Message) -> None:
    back = decode(encode(message), type(message))
    assert type(back) is type(message)
    assert dict(leaves(back)) == dict(leaves(message))


def test_every_message_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(codec._CLASSES.values()) - {msg.Request, msg.Answer}


def test_every_request_names_its_answer_and_a_deadline() -> None:
    requests = [cls for cls in codec._CLASSES.values() if issubclass(cls, msg.Request) and cls is not msg.Request]
    for cls in requests:
        assert issubclass(cls.answer_type(), msg.Answer)
    assert {f"{stage}_s" for stage in get_args(msg.Stage)} == set(Deadlines.model_fields)
    assert {f"{cls.stage}_s" for cls in requests} == set(Deadlines.model_fields)


def test_what_teaches_the_server_changes_the_client() -> None:
    teaching = {cls for cls in codec._CLASSES.values() if issubclass(cls, msg.Request) and cls.teaches}
    assert teaching == {msg.Forward, msg.Learn}
    assert all(cls.changes for cls in teaching)


def test_only_tensors_are_payload() -> None:
    assert msg.Sync(3, SIDE, **NOW).payload_bytes == 4 * 7
    assert msg.Ping(**NOW).payload_bytes == 0


@pytest.mark.parametrize(
    ("op", "plain", "tensors", "words"),
    [
        ("dance", {}, {}, "'dance' instead of a message of kind message"),
        ("where", {}, {}, "cut is missing"),
        ("where", {"cut": 1, "more": 2}, {}, "more = 2"),
        ("where", {"cut": -1}, {}, "cut = -1"),
        ("where", {"cut": 1.0}, {}, "cut = 1.0"),
        ("where", {"cut": True}, {}, "cut = True"),
        ("where", {"cut": "1"}, {}, "cut = '1'"),
        ("where", {"cut": 1 << 50}, {}, "cut = "),
        ("where", {"cut": 1, "busy_s": "1"}, {}, "busy_s = '1'"),
        ("where", {"cut": 1, "busy_s": -1.0}, {}, "busy_s = -1.0"),
        ("where", {"cut": 1, "energy_j": True}, {}, "energy_j = True"),
        ("where", {"cut.x": 1}, {}, "cut = "),
        ("refusal", {"reason": None}, {}, "reason = None"),
        ("shrink", {"cut": 1, "send": 1}, {}, "send = 1"),
        ("update", {"norm2": 1.0}, {}, "norm2 = 1.0"),
        ("update", {}, {"norm2": torch.ones(1)}, r"norm2 is float32 \[1\], not float32 with 0 axes"),
        ("update", {}, {"norm2": torch.tensor(torch.inf)}, "norm2 has numbers that are not finite"),
        ("update", {}, {"norm2": torch.tensor(1.0, dtype=torch.float64)}, "norm2 is float64"),
        ("values", {"values": 1}, {"values": torch.ones(1)}, "'values' is there twice"),
        ("side", {"layers": 1}, {"layers.parameters": torch.ones(1)}, "'layers' is there twice"),
        ("side", {}, {"layers.parameters": torch.ones(1)}, "layers.statistics is missing"),
        (
            "side",
            {},
            {"layers.parameters": torch.ones(1), "layers.statistics": torch.tensor([torch.nan])},
            "not finite",
        ),
        ("activations", {}, {"carry.0": torch.ones(1)}, "labels is missing"),
        ("activations", {}, {"codes.0.low": torch.ones(1), "labels": torch.arange(1)}, "codes.0.codes is missing"),
        (
            "activations",
            {},
            {
                "codes.0.codes": torch.ones(1),
                "codes.0.low": torch.ones(1),
                "codes.0.step": torch.ones(1),
                "labels": torch.arange(1),
            },
            "codes.0.codes is float32",
        ),
        ("forward", {"step": 0, "cut": 1, "bits": 5}, {}, "bits = 5 must be one of 32, 16, 8, 4"),
        ("forward", {"step": 0, "cut": 1, "bits": 4.0}, {}, "bits = 4.0"),
        ("activations", {}, {"carry.0": torch.ones(1), "carry.2": torch.ones(1), "labels": torch.arange(1)}, "carry"),
        ("activations", {}, {"carry.0.0": torch.ones(1), "labels": torch.arange(1)}, "carry.0"),
        ("probed", {}, {"data": torch.ones(2)}, "data is float32"),
    ],
)
def test_what_is_not_declared_is_refused(
    op: str, plain: dict[str, Json], tensors: dict[str, torch.Tensor], words: str
) -> None:
    with pytest.raises(WireError, match=words):
        decode(pack(op, plain, tensors), Message)


def test_another_kind_is_refused() -> None:
    with pytest.raises(WireError, match="'ping' instead of a message of kind answer"):
        decode(encode(msg.Ping()), msg.Answer)


plain = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | st.text(max_size=5) | st.just([{"a": 1}])
tensor = st.sampled_from(
    [torch.ones(()), torch.ones(3), torch.zeros(2, 2, dtype=torch.int64), torch.tensor([torch.nan])]
)
keys = st.sampled_from(sorted({name for message in EXAMPLES for name, _ in leaves(message)}))
dotted = st.builds(
    lambda key, rest: f"{key}{rest}", keys, st.sampled_from(["", "", ".0", ".1", ".parameters", ".x", "."])
)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(codec._CLASSES)),
    st.dictionaries(dotted, plain, max_size=6),
    st.dictionaries(dotted, tensor, max_size=4),
)
def test_whatever_the_header_says(op: str, fields: dict[str, Json], tensors: dict[str, torch.Tensor]) -> None:
    """A message or an error for people; nothing else ever comes out of it."""
    with contextlib.suppress(AsflError):
        decode(pack(op, fields, tensors), Message)


@settings(max_examples=200)
@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_messages(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    place = data.draw(st.integers(0, min(len(encoded), 600) - 1))
    encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(AsflError):
        decode(encoded, Message)


def test_a_message_is_stamped_without_a_copy_of_its_tensors() -> None:
    stamped = replace(msg.Values(SIDE.parameters), busy_s=1.0)
    assert stamped.values is SIDE.parameters
    assert unpack(encode(stamped))[1] == {"busy_s": 1.0}

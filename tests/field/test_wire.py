"""Messages as bytes: what goes in comes out, bit for bit; whatever else arrives is refused, and nothing worse."""

import contextlib
import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from small_runs import agreement_of, tiny

from asfl.config.errors import AsflError
from asfl.field import messages as msg, wire
from asfl.field.messages import Answer, Blueprint
from asfl.field.stream import CHUNK, Joiner, split
from asfl.field.wire import (
    HEADER_LIMIT,
    MOST_SECONDS,
    MOST_SQUARE,
    MOST_WEIGHT,
    Message,
    WireError,
    decode,
    encode,
    new_buffer,
    pack,
    unpack,
)
from asfl.train.fleet import FirstLayers, Packet, Projections
from asfl.train.optimizers import OptimizerState
from asfl.train.quantise import Quantised, QuantisedLayers, quantise_carry, quantise_side
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

SIDE, LAYERS = ModelVectors(torch.randn(5), torch.randn(2)), FirstLayers(torch.randn(5), torch.randn(2))
MEMORY = OptimizerState(torch.randn(2, 5), np.arange(4))
CODES, LOW = torch.arange(5, dtype=torch.uint8), torch.randn(3)
CODED = Quantised(CODES, LOW, torch.rand(3), 8, (5, 1))
FEW = FirstLayers(QuantisedLayers(CODES, LOW, torch.rand(3), 8, torch.zeros(0, dtype=torch.int64)), torch.randn(2))
COST: dict[str, Any] = {"busy_s": 0.25, "energy_j": 3.0}
NOW: dict[str, Any] = {"round": 3, "after": 2}
IMAGES = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
TASK = Task(3, 1, 4, 0, 8, 5)
EXAMPLES: list[Message] = [
    agreement_of(tiny(), "asfl").welcome(2), msg.Ready("one"), msg.Refusal("no", **COST), msg.Where(3, 7, 120, **COST),
    msg.Where(0), msg.Calibrate(SIDE, **NOW), msg.Calibrated(torch.ones(5)), msg.Score(SIDE, **NOW),
    msg.Scored(40, 30, 0.5, **COST), msg.Side(LAYERS, **COST), msg.Side(FEW), msg.Side(),
    msg.ClientState(SIDE, MEMORY), msg.Activations(Packet((IMAGES, torch.ones(2, 1)), torch.arange(2)), **COST),
    msg.Activations(Packet((CODED, CODED), torch.arange(2), torch.tensor(0.5))), msg.Update(torch.tensor(1.5)),
    msg.Update(torch.tensor(1.5), torch.tensor(0.5)), msg.Values(torch.randn(9)),
    msg.Projected(Projections(torch.full((2, 4), -3, dtype=torch.int16), torch.ones(2))),
    msg.Probed(CODES, torch.ones(2, 4, dtype=torch.float64)), msg.Sync(3, SIDE, MEMORY, **NOW), msg.Sync(3, SIDE),
    msg.Grow(3, SIDE, **NOW), msg.Shrink(3, send=True, **NOW), msg.Forward(TASK, LAYERS, **NOW), msg.Forward(TASK),
    msg.Upload(TASK, torch.randn(5), **NOW), msg.Share(2, FEW, **NOW), msg.Backward(TASK, (IMAGES, CODED), **NOW),
    msg.Learn(TASK, FEW, **NOW), msg.Give(TASK, **NOW), msg.Moved(TASK, **NOW), msg.Sample(CODES, **NOW),
    msg.Project(2, **NOW), msg.Gather(memory=False, **NOW), msg.Ping(),
    msg.Probe(9, compute=True, data=CODES), msg.Bye(),
]  # fmt: skip
KINDS = {kind for kind in wire._CLASSES.values() if kind not in (msg.Request, msg.Answer)}
REQUESTS = {kind for kind in KINDS if issubclass(kind, msg.Request)}


def leaves(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.dtype, value.stride()
    if is_dataclass(value):
        return [type(value), *(leaves(getattr(value, field.name)) for field in fields(value))]
    return (
        list(map(leaves, value)) if isinstance(value, tuple) else value.tolist() if hasattr(value, "tolist") else value
    )


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.name)
def test_what_is_sent_comes_back(message: Message) -> None:
    assert leaves(decode(encode(message), type(message))) == leaves(message)


def test_every_message_has_an_example_and_an_answer() -> None:
    assert {type(message) for message in EXAMPLES} == KINDS
    assert all(issubclass(kind.answer_type(), Answer) for kind in REQUESTS)
    assert set(get_args(msg.Stage)) == {kind.stage for kind in REQUESTS}
    assert {kind for kind in REQUESTS if kind.teaches} == {msg.Forward, msg.Learn}
    assert all(kind.changes for kind in REQUESTS if kind.teaches)


def test_only_tensors_are_payload_and_a_stamp_copies_none() -> None:
    assert msg.Sync(3, SIDE, **NOW).payload_bytes == 4 * 7
    assert msg.Share(2, FEW).payload_bytes == 5 + 4 * 8  # the sizes of groups don't cross
    assert msg.Ping(**NOW).payload_bytes == 0
    assert replace(msg.Values(SIDE.parameters), busy_s=1.0).values is SIDE.parameters


def plain(kind: str, *tensors: torch.Tensor, **values: Any) -> bytes:
    return pack(kind, values, tensors)


HERE = {"tensor": 0}
ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (plain("dance"), "'dance' instead of a message of kind message"),
        (plain("where"), "cut is missing"),
        (plain("where", cut=1, more=2), "'more' is not a field"),
        (plain("where", cut=-1), "cut = -1"),
        (plain("where", cut=True), "cut = True"),
        (plain("where", cut="1"), "cut = '1'"),
        (plain("where", cut=1 << 50), "cut = "),
        (plain("where", cut=1, busy_s=-1.0), r"busy_s = -1\.0"),
        (plain("shrink", cut=1, send=1), "send = 1"),
        (plain("ready", node="x" * 33), "must be at most 32"),
        (plain("update", norm2=HERE), "norm2 = .* must be a tensor"),
        (plain("update", ONE, norm2=HERE), r"norm2 is float32 \[1\], not float32 with 0 axes"),
        (plain("update", ONE[0], ONE[0], norm2=HERE), "1 tensors too many"),
        (plain("update", ONE[0], norm2=HERE, loss=HERE), "loss = .* must be a tensor"),
        (plain("side", layers=1), "layers = 1 must be an object"),
        (plain("side", ONE, layers={"parameters": HERE}), r"layers\.statistics is missing"),
        (plain("activations", packet={"carry": 3}), r"packet\.carry = 3 must be a list"),
        (plain("activations", ONE, packet={"carry": [{"codes": HERE}]}), r"packet\.carry\.0\.low is missing"),
        (plain("forward", task={"round": 0, "client": 0, "cut": 1, "bits": 4.0}), r"task\.bits = 4\.0"),
        (plain("forward", task={"round": 0, "client": 0, "cut": 1, "bits": 1 << 40}), r"task\.bits = .* must be 4 … 3"),
        (encode(msg.Update(torch.tensor(-1e30))), "norm2 has -1e[+]30; valid are 0 … 1e[+]12"),
        (encode(msg.Update(ONE[0], -ONE[0])), "loss has -1"),
        (encode(msg.Values(torch.tensor([0.0, 3e38]))), r"values has 3e\+38"),
        (encode(msg.Probed(CODES, -torch.ones(2, 3).double())), "seconds has -1"),
    ],
)  # fmt: skip
def test_what_is_not_declared_or_out_of_range_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words) as refused:
        decode(data, Message)
    assert str(refused.value).isprintable()


def test_another_kind_is_refused_and_names_are_cut() -> None:
    with pytest.raises(WireError, match="'ping' instead of a message of kind answer"):
        decode(encode(msg.Ping()), Answer)
    with pytest.raises(WireError) as caught:
        decode(pack("where", {"cut": 1, "\x1b[1A\r\u202e" + "y" * 10_000: 1}, []), Answer)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def state(parameter: float, statistic: float = 0.0, moment: float = 0.0) -> msg.ClientState:
    memory = OptimizerState(vector(moment)[None], np.zeros(1, np.int64))
    return msg.ClientState(ModelVectors(vector(parameter), vector(statistic)), memory)


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        (state(MOST_WEIGHT, -MOST_SQUARE), state(-1.1 * MOST_WEIGHT)),
        (state(-MOST_WEIGHT, MOST_SQUARE), state(0, 1.1 * MOST_SQUARE)),
        (state(0, 0, MOST_SQUARE), state(0, 0, -1.1 * MOST_SQUARE)),
        (msg.Values(vector(MOST_WEIGHT)), msg.Values(vector(1.1 * MOST_WEIGHT))),
        (msg.Side(FirstLayers(vector(MOST_WEIGHT), vector(0))), msg.Side(FirstLayers(vector(torch.nan), vector(0)))),
        (msg.Update(vector(MOST_SQUARE)[0], vector(MOST_WEIGHT)[0]), msg.Update(vector(-1e-3)[0])),
        (msg.Update(vector(0)[0], vector(0)[0]), msg.Update(vector(0)[0], vector(1.1 * MOST_WEIGHT)[0])),
        (msg.Where(1, busy_s=MOST_SECONDS), msg.Where(1, busy_s=1.1 * MOST_SECONDS)),
        (msg.Where(1, samples=1), msg.Where(1, samples=10**9 + 1)),
    ],
)
def test_ranges_are_as_the_table_in_the_security_page_says(within: Answer, beyond: Answer) -> None:
    decode(encode(within), Answer)
    with pytest.raises(WireError):
        decode(encode(beyond), Answer)


# ---------------------------------------------------------------------- what fits the network
SHAPES = Blueprint.of(tiny()).shapes
CUT = 2
Change = Callable[[Any], Any]


def packet_of(bits: int) -> Packet:
    """As a client would answer."""
    random = np.random.default_rng(1)
    carry = (torch.from_numpy(random.normal(size=SHAPES.carries[CUT][0])).float(),)
    error = None if bits == 32 else torch.tensor(0.1)
    return Packet(quantise_carry(carry, bits, random), torch.zeros(len(carry[0]), dtype=torch.uint8), error)


def layers_of(bits: int) -> FirstLayers:
    random = np.random.default_rng(1)
    difference = torch.from_numpy(random.normal(size=int(SHAPES.layout.parameter_edges[CUT]))).float()
    statistics = torch.ones(int(SHAPES.layout.statistic_edges[CUT]))
    return FirstLayers(quantise_side(SHAPES.layout, difference, CUT, bits, random), statistics)


def received(sent: Packet | FirstLayers, bits: int) -> Packet | FirstLayers:
    """As the server reads it."""
    if isinstance(sent, FirstLayers):
        return SHAPES.check_layers(decode(encode(msg.Side(sent)), msg.Side).layers, CUT, bits)
    packet = decode(encode(msg.Activations(sent)), msg.Activations).packet
    return SHAPES.check_packet(packet, replace(TASK, cut=CUT, bits=bits, batch=None))


def carry(change: Change = lambda whole: whole, **parts: Change) -> Change:
    """Of the first tensor of a packet, or of its parts."""
    return lambda packet: replace(packet, carry=(changed(packet.carry[0], change, parts),))


def parameters(change: Change = lambda whole: whole, **parts: Change) -> Change:
    return lambda layers: replace(layers, parameters=changed(layers.parameters, change, parts))


def changed(value: Any, change: Change, parts: dict[str, Change]) -> Any:
    value = change(value)
    return replace(value, **{name: f(getattr(value, name)) for name, f in parts.items()}) if parts else value


def packet(**parts: Change) -> Change:
    return lambda whole: changed(whole, lambda same: same, parts)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_what_fits_is_taken(bits: int) -> None:
    shared = torch.zeros(int(SHAPES.layout.parameter_edges[CUT]))
    found = received(layers_of(bits), bits)
    assert isinstance(found, FirstLayers)
    assert torch.equal(found.received(shared).parameters, layers_of(bits).received(shared).parameters)
    assert leaves(received(packet_of(bits), bits))[1] == leaves(packet_of(bits))[1]


@pytest.mark.parametrize(
    ("make", "bits", "change", "words"),
    [
        (packet_of, 32, carry(lambda tensor: torch.full_like(tensor, torch.nan)), "carry.0 has numbers that are not"),
        (packet_of, 32, carry(lambda tensor: tensor[:-1]), "carry.0 is float32"),
        (packet_of, 32, carry(lambda tensor: tensor.flatten()), "carry.0 is float32"),
        (packet_of, 32, carry(lambda tensor: tensor.double()), "carry.0 is float64"),
        (packet_of, 32, carry(lambda tensor: tensor - 1e7), "carry.0 has -1e+07"),
        (packet_of, 32, packet(labels=lambda labels: labels + 10), "labels must be 0 … 9"),
        (packet_of, 32, packet(labels=lambda labels: labels.long() - 100), "labels has -"),
        (packet_of, 32, packet(labels=lambda labels: labels.float()), "labels is float32"),
        (packet_of, 32, packet(labels=lambda _: None), "labels = None must be a tensor"),
        (packet_of, 32, packet(carry=lambda _: ()), "carry has 0 tensors, not 1"),
        (packet_of, 32, packet(carry=lambda carry: carry * 2), "carry has 2 tensors, not 1"),
        (packet_of, 32, lambda _: packet_of(4), "carry.0 must come with 32 bits"),
        (packet_of, 4, lambda _: packet_of(32), "carry.0 must come with 4 bits"),
        (packet_of, 4, lambda _: packet_of(8), "carry.0 must come with 4 bits"),
        (packet_of, 4, carry(bits=lambda _: 8), "carry.0 must come with 4 bits"),
        (packet_of, 4, carry(shape=lambda _: (1,)), "carry.0 has shape [1], not"),
        (packet_of, 4, carry(codes=lambda codes: codes[:-1]), "carry.0.codes is uint8"),
        (packet_of, 4, carry(codes=lambda codes: codes.repeat(2)), "carry.0.codes is uint8"),  # as at 8 bits
        (packet_of, 4, carry(codes=lambda codes: codes.float()), "carry.0.codes is float32"),
        (packet_of, 4, carry(low=lambda low: low[1:]), "carry.0.low is float32"),
        (packet_of, 4, carry(low=lambda low: low / 0), "carry.0.low has numbers that are not finite"),
        (packet_of, 4, carry(step=lambda step: torch.cat([step, step])), "carry.0.step is float32"),
        (packet_of, 4, carry(step=lambda step: -1 - step), "carry.0.step has -"),
        (packet_of, 4, carry(step=lambda step: torch.full_like(step, 1e38)), "carry.0.step has 1e+38"),
        (packet_of, 4, carry(step=lambda step: torch.full_like(step, 1e6)), "that a number is above 1e+06"),
        (packet_of, 32, packet(error=lambda _: torch.tensor(0.1)), "error must come with codes, and only with them"),
        (packet_of, 4, packet(error=lambda _: None), "error must come with codes"),
        (packet_of, 4, packet(error=lambda error: -error), "error has -"),
        (packet_of, 4, packet(error=lambda error: error / 0), "error has numbers that are not finite"),
        (layers_of, 32, lambda _: layers_of(8), "parameters must come with 32 bits"),
        (layers_of, 8, lambda _: layers_of(32), "parameters must come with 8 bits"),
        (layers_of, 4, lambda _: layers_of(8), "parameters must come with 4 bits"),
        (layers_of, 32, parameters(lambda whole: whole[:-1]), "parameters is float32"),
        (layers_of, 32, parameters(lambda whole: whole * torch.inf), "not finite"),
        (layers_of, 32, parameters(lambda whole: whole + 1e7), "parameters has 1e+07"),
        (layers_of, 8, parameters(codes=lambda codes: codes[:-1]), "parameters.codes is uint8"),
        (layers_of, 8, parameters(low=lambda low: low[:-1]), "parameters.low is float32"),
        (layers_of, 8, parameters(step=lambda step: step + 1e5), "that a number is above"),
        (layers_of, 8, lambda sent: replace(sent, statistics=sent.statistics[1:]), "statistics is float32"),
        (layers_of, 8, lambda sent: replace(sent, statistics=-sent.statistics), "negative variance"),
        (layers_of, 32, lambda sent: replace(sent, statistics=-sent.statistics), "negative variance"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_network_is_refused(
    make: Callable[[int], Any], bits: int, change: Change, words: str
) -> None:
    with pytest.raises(WireError, match=re.escape(words)):
        received(change(make(bits)), bits)


# ---------------------------------------------------------------------- tensors
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, 0 to 4 axes, possibly empty; contiguous, permuted, a slice with gaps, or somewhere in a buffer."""
    shape, dtype = draw(st.lists(st.integers(0, 4), max_size=4)), draw(st.sampled_from(list(wire.DTYPE_NAMES)))
    count, start = torch.Size(shape).numel(), draw(st.integers(0, 40))
    values = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 2**31))).integers(0, 256, count + 40)).to(dtype)
    tensor = values[start : start + count].view(shape)
    match draw(st.sampled_from(["plain", "permuted", "gaps", "expanded"])):
        case "permuted":
            return tensor.permute(draw(st.permutations(range(len(shape)))))
        case "gaps" if shape:
            return tensor[..., ::2]
        case "expanded":
            return tensor.unsqueeze(0).expand(3, *shape)
    return tensor


ops = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=10)
packed = st.tuples(ops, st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.lists(tensors(), max_size=3))


@given(packed, st.sampled_from([bytes, bytearray, memoryview, "buffer"]))
def test_what_goes_in_comes_out(message: tuple[str, Any, list[torch.Tensor]], container: Any) -> None:
    data: Any = pack(*message)
    if container == "buffer":
        buffer = new_buffer(len(data))
        buffer.numpy()[:] = memoryview(data)
        data = buffer
    op, found, received = unpack(data if container == "buffer" else container(data))
    assert (op, found) == message[:2]
    for got, sent in zip(received, message[2], strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert torch.equal(got, sent)
        got.zero_()  # no other tensor's memory


def test_strides_survive_every_tensor_begins_on_a_line_and_nothing_is_copied() -> None:
    halves = torch.randn(6, 7).chunk(2)  # the second begins in the middle of a line
    single = torch.randn(4, 8, 1, 1).contiguous(memory_format=torch.channels_last)  # ambiguous, and kernels look at it
    sent = [IMAGES, halves[1], single]
    data = pack("forward", {}, sent)
    buffer = new_buffer(len(data))
    buffer.numpy()[:] = memoryview(data)
    for got, tensor in zip(unpack(buffer)[2], sent, strict=True):
        assert torch.equal(got, tensor)
        assert got.stride() == tensor.stride()
        assert got.data_ptr() % 64 == 0
        assert got.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


# ---------------------------------------------------------------------- what isn't a message
def refused(data: bytes) -> None:
    """A message or an error for people; nothing else comes of it, and nothing large is allocated on the way."""
    tracemalloc.start()
    with contextlib.suppress(AsflError):
        decode(data, Message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(data) + 400_000


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_random_bytes_and_headers(data: bytes) -> None:
    refused(data)
    refused(struct.pack("<4sII", wire.MAGIC, wire.VERSION, len(data)) + data)


keys = st.sampled_from(
    ["cut", "round", "norm2", "layers", "packet", "carry", "task", "side", "parameters", "agreement"]
)
odd = st.recursive(json_values | st.just(HERE), lambda inner: st.lists(inner) | st.dictionaries(keys, inner))


@settings(max_examples=150)
@given(st.sampled_from(sorted(wire._CLASSES)), st.dictionaries(keys, odd, max_size=6), st.lists(tensors(), max_size=3))
def test_whatever_the_header_says(op: str, said: dict[str, Any], given_: list[torch.Tensor]) -> None:
    with contextlib.suppress(AsflError):
        decode(pack(op, said, given_), Message)


@settings(max_examples=200)
@given(st.sampled_from(EXAMPLES[1:]), st.data())
def test_damaged_messages(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(min(len(encoded), 600) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "drop", "add", "cut"])):
            case "flip" if encoded:
                encoded[place] ^= 1 << data.draw(st.integers(0, 7))
            case "drop":
                del encoded[place : place + 1]
            case "add":
                encoded.insert(place, data.draw(st.integers(0, 255)))
            case "cut":
                del encoded[place + 1 :]
    refused(bytes(encoded))


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sII", wire.MAGIC, wire.VERSION, len(text)) + text + data


def one_tensor(*entry: object) -> bytes:
    return with_header({"op": "x", "fields": {}, "tensors": [list(entry)]})


FILLED = bytearray(pack("x", {}, [torch.ones(1), torch.ones(1)]))
FILLED[-5] = 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short"),
        (struct.pack("<4sII", b"HTTP", 1, 0), "not a message"),
        (struct.pack("<4sII", b"ASFL", 1, 0), "version 1"),
        (struct.pack("<4sII", b"ASFL", 2, 2**32 - 1), "a header of 4,294,967,295"),
        (struct.pack("<4sII", b"ASFL", 2, HEADER_LIMIT + 1) + bytes(HEADER_LIMIT + 1), "a header of"),
        (with_header(b"{"), "header is wrong"),
        (with_header(b"\xff"), "header is wrong"),
        (with_header(b"[" * 100_000), "header is wrong"),
        (with_header(b'{"op": "x", "fields": {"a": ' + b"9" * 5000 + b'}, "tensors": []}'), "header is wrong"),
        (with_header({"op": "x", "fields": {}}), "header is wrong"),
        (with_header([]), "header is wrong"),
        (with_header({"op": "X", "fields": {}, "tensors": []}), "header is wrong: .op"),
        (with_header({"op": "x", "fields": {}, "tensors": [["a"]]}), "tensors"),
        (with_header({"op": "x", "fields": {}, "tensors": [[]] * 65}), "at most 64"),
        (one_tensor("object", [0], [1]), "'float64'"),
        (one_tensor("float32", [-1], [1]), "shape|tensors"),
        (one_tensor("float32", [True], [1]), "shape|tensors"),
        (one_tensor("float32", [1.0], [1]), "shape|tensors"),
        (one_tensor("float32", [2**40, 2**40], [2**40, 1]), "shape|tensors"),
        (one_tensor("float32", [2, 2], [1]), "shape|tensors"),
        (one_tensor("float32", [2, 2], [1, 1]), "gaps or overlaps"),
        (one_tensor("float32", [2, 2], [3, 1]), "gaps or overlaps"),
        (one_tensor("float32", [2**40], [1]), "ends before"),
        (pack("x", {}, [torch.ones(3)]) + b"0", "1 bytes too many"),
        (pack("x", {}, [torch.ones(3)])[:-1], "ends before"),
        (bytes(FILLED), "between the tensors"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        unpack(data)
    refused(data)


def test_a_message_above_the_limit_is_refused() -> None:
    with pytest.raises(WireError, match="more than the 100 agreed on"):
        unpack(pack("x", {}, [torch.ones(100)]), limit=100)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (("x", {"a": float("nan")}, []), "can't be sent"),
        (("x", {"a": "y" * HEADER_LIMIT}, []), "its header has"),
        (("Not a word", {}, []), "header is wrong: .op"),
        (("x", {}, [torch.ones(2, dtype=torch.complex64)]), "complex64"),
        (("x", {}, [torch.ones(2).to_sparse()]), "sparse"),
    ],
)
def test_what_could_not_be_read_is_not_sent(message: tuple[str, Any, list[torch.Tensor]], words: str) -> None:
    with pytest.raises(WireError, match=words):
        pack(*message)


# ---------------------------------------------------------------------- chunks
@pytest.mark.parametrize("size", [0, 1, CHUNK - 8, CHUNK - 7, CHUNK, 3 * CHUNK + 5])
def test_what_is_split_is_joined(size: int) -> None:
    message, joiner = (bytes(range(256)) * (size // 256 + 1))[:size], Joiner(limit=size)
    for _ in range(2):  # and then the next one
        chunks = list(split(message))
        assert all(len(chunk) <= CHUNK for chunk in chunks)
        *before, joined = [joiner.add(chunk) for chunk in chunks]
        assert before == [None] * (len(chunks) - 1)
        assert joined is not None
        assert joined.numpy().tobytes() == message


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_random_chunks_are_refused_or_joined_and_never_above_the_limit(chunks: list[bytes]) -> None:
    joiner = Joiner(limit=64)
    with contextlib.suppress(WireError):
        for chunk in chunks:
            joined = joiner.add(chunk)
            assert joined is None or len(joined) <= 64


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([struct.pack("<Q", 101)], "101 bytes, more than the 100"),
        ([struct.pack("<Q", 2**63)], "more than the 100"),
        ([b"1234567"], "too short"),
        ([struct.pack("<Q", 2) + b"abc"], "1 bytes too long"),
        ([struct.pack("<Q", 4) + b"abc", b"de"], "1 bytes too long"),
        ([struct.pack("<Q", 4), b""], "an empty chunk"),
    ],
)
def test_what_is_wrong_with_chunks_is_said(chunks: list[bytes], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a length that wasn't agreed on takes no buffer."""
    made: list[int] = []

    def watched(size: int) -> torch.Tensor:
        made.append(size)
        return new_buffer(size)

    monkeypatch.setattr("asfl.field.stream.new_buffer", watched)
    *good, bad = chunks
    joiner = Joiner(limit=100)
    assert [joiner.add(chunk) for chunk in good] == [None] * len(good)
    with pytest.raises(WireError, match=words):
        joiner.add(bad)
    assert all(size <= 100 for size in made)

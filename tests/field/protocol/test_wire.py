"""The wire format: what goes in comes out, bit for bit; whatever else arrives is refused, and nothing worse."""

import json
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asfl.field.wire import HEADER_LIMIT, Json, WireError, new_buffer, pack, unpack

Parts = tuple[str, dict[str, Json], dict[str, torch.Tensor]]

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8]

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.", min_size=1, max_size=10)
plain: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, 0 to 4 axes, possibly empty; contiguous, permuted, a slice with gaps, or somewhere in a buffer."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    count = torch.Size(shape).numel()
    seed = draw(st.integers(0, 2**31))
    values = torch.randint(0, 256, (count + 40,), generator=torch.Generator().manual_seed(seed)).to(dtype)
    start = draw(st.integers(0, 40))
    tensor = values[start : start + count].view(shape)
    kind = draw(st.sampled_from(["plain", "permuted", "gaps", "expanded"]))
    if kind == "permuted":
        return tensor.permute(draw(st.permutations(range(len(shape)))))
    if kind == "gaps" and shape:
        return tensor[..., ::2]
    if kind == "expanded":
        return tensor.unsqueeze(0).expand(3, *shape)
    return tensor


messages = st.tuples(
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=10),
    st.dictionaries(st.text(max_size=5), plain, max_size=4),
    st.dictionaries(names, tensors(), max_size=3),
)


@given(messages, st.sampled_from([bytes, bytearray, memoryview, "buffer"]))
def test_what_goes_in_comes_out(message: Parts, container: object) -> None:
    data: bytes | bytearray | memoryview | torch.Tensor = pack(*message)
    if container == "buffer":
        buffer = new_buffer(len(data))
        buffer.numpy()[:] = memoryview(pack(*message))
        data = buffer
    elif callable(container):
        data = container(data)
    op, fields, received = unpack(data)
    assert (op, fields) == message[:2]
    assert list(received) == list(message[2])
    for name, sent in message[2].items():
        got = received[name]
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        assert torch.equal(got, sent)
        got.zero_()  # nobody else's memory


def test_strides_survive_and_every_tensor_begins_on_a_line() -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    halves = torch.randn(6, 7).chunk(2)  # the second begins in the middle of a line
    single = torch.randn(4, 8, 1, 1).contiguous(memory_format=torch.channels_last)  # ambiguous, and kernels look at it
    sent = {"image": image, "half": halves[1], "single": single}
    back = unpack(pack("forward", {}, sent))[2]
    for name, tensor in sent.items():
        assert torch.equal(back[name], tensor)
        assert back[name].stride() == tensor.stride()
        assert back[name].data_ptr() % 64 == 0


def test_a_buffer_is_decoded_without_a_copy() -> None:
    data = pack("forward", {}, {"x": torch.arange(1000.0)})
    buffer = new_buffer(len(data))
    buffer.numpy()[:] = memoryview(data)
    tensor = unpack(buffer)[2]["x"]
    assert tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


# ---------------------------------------------------------------------- what isn't a message
def refused(data: bytes) -> bool:
    """WireError or a message; anything else fails the test. Nothing large is allocated on the way."""
    tracemalloc.start()
    try:
        unpack(data)
    except WireError:
        return True
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 * len(data) + 200_000
    return False


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    assert refused(data)


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_random_headers(header: bytes) -> None:
    assert refused(struct.pack("<4sII", b"ASFL", 1, len(header)) + header)


@settings(max_examples=100)
@given(messages, st.data())
def test_mutated_messages(message: Parts, data: st.DataObject) -> None:
    encoded = bytearray(pack(*message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(len(encoded) - 1, 0)))
        if not encoded:
            break
        match data.draw(st.sampled_from(["flip", "drop", "add", "cut"])):
            case "flip":
                encoded[place] ^= 1 << data.draw(st.integers(0, 7))
            case "drop":
                del encoded[place]
            case "add":
                encoded.insert(place, data.draw(st.integers(0, 255)))
            case "cut":
                del encoded[place + 1 :]
    refused(bytes(encoded))


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sII", b"ASFL", 1, len(text)) + text + data


def one_tensor(*entry: object) -> bytes:
    return with_header({"op": "x", "fields": {}, "tensors": [list(entry)]})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short"),
        (struct.pack("<4sII", b"HTTP", 1, 0), "not a message"),
        (struct.pack("<4sII", b"ASFL", 2, 0), "version 2"),
        (struct.pack("<4sII", b"ASFL", 1, 2**32 - 1), "a header of 4,294,967,295"),
        (struct.pack("<4sII", b"ASFL", 1, HEADER_LIMIT + 1) + bytes(HEADER_LIMIT + 1), "a header of"),
        (with_header(b"{"), "not plain JSON"),
        (with_header(b"\xff"), "not plain JSON"),
        (with_header(b"[" * 100_000), "not plain JSON"),
        (with_header(b'{"op": "x", "op": "y", "fields": {}, "tensors": []}'), "a name twice"),
        (with_header(b'{"op": "x", "fields": {"a": NaN}, "tensors": []}'), "not a finite number"),
        (with_header(b'{"op": "x", "fields": {"a": 1e999}, "tensors": []}'), "not a finite number"),
        (with_header(b'{"op": "x", "fields": {"a": ' + b"9" * 5000 + b'}, "tensors": []}'), "not plain JSON"),
        (with_header({"op": "x", "fields": {}}), "op, fields and tensors"),
        (with_header([]), "op, fields and tensors"),
        (with_header({"op": "X", "fields": {}, "tensors": []}), "small letters"),
        (with_header({"op": "x", "fields": [], "tensors": []}), "must be an object"),
        (with_header({"op": "x", "fields": {"a": [[[[[[[[0]]]]]]]]}, "tensors": []}), "deep"),
        (with_header({"op": "x", "fields": {}, "tensors": [["a"]]}), "described by"),
        (with_header({"op": "x", "fields": {}, "tensors": [[]] * 65}), "at most 64"),
        (one_tensor("../a", "float32", [0], [1]), "no name of a tensor"),
        (one_tensor("a", "object", [0], [1]), "has dtype 'object'"),
        (one_tensor("a", "float32", [-1], [1]), "has shape"),
        (one_tensor("a", "float32", [True], [1]), "has shape"),
        (one_tensor("a", "float32", [1.0], [1]), "has shape"),
        (one_tensor("a", "float32", [2**40, 2**40], [2**40, 1]), "has shape"),
        (one_tensor("a", "float32", [2, 2], [1]), "has shape"),
        (one_tensor("a", "float32", [2, 2], [1, 1]), "gaps or overlaps"),
        (one_tensor("a", "float32", [2, 2], [3, 1]), "gaps or overlaps"),
        (one_tensor("a", "float32", [2**40], [1]), "ends before a does"),
        (pack("x", {}, {"a": torch.ones(3)}) + b"0", "1 bytes too many"),
        (pack("x", {}, {"a": torch.ones(3)})[:-1], "ends before a does"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        unpack(data)
    assert refused(data)


def test_two_tensors_of_one_name_and_filled_gaps_are_refused() -> None:
    entry = ["a", "uint8", [0], [1]]
    with pytest.raises(WireError, match="the same name"):
        unpack(with_header({"op": "x", "fields": {}, "tensors": [entry, entry]}))
    data = bytearray(pack("x", {}, {"a": torch.ones(1), "b": torch.ones(1)}))
    data[-5] = 1
    with pytest.raises(WireError, match="between the tensors"):
        unpack(data)


def test_a_message_above_the_limit_is_refused() -> None:
    with pytest.raises(WireError, match="more than the 100 agreed on"):
        unpack(pack("x", {}, {"a": torch.ones(100)}), limit=100)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (("x", {"a": float("nan")}, {}), "can't be sent"),
        (("x", {"a": "y" * HEADER_LIMIT}, {}), "its header has"),
        (("Not a word", {}, {}), "small letters"),
        (("x", {}, {"a": torch.ones(2, dtype=torch.complex64)}), "complex64"),
        (("x", {}, {"a": torch.ones(2).to_sparse()}), "sparse"),
        (("x", {}, {"A": torch.ones(2)}), "no name of a tensor"),
    ],
)
def test_what_could_not_be_read_is_not_sent(message: Parts, words: str) -> None:
    with pytest.raises(WireError, match=words):
        pack(*message)

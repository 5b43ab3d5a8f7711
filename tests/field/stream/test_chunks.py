"""Messages in chunks."""

import struct

import pytest
from hypothesis import given, strategies as st

from asfl.field.stream import CHUNK, Joiner, split
from asfl.field.wire import WireError


@pytest.mark.parametrize("size", [0, 1, CHUNK - 8, CHUNK - 7, CHUNK, 3 * CHUNK + 5])
def test_what_is_split_is_joined(size: int) -> None:
    message = bytes(range(256)) * (size // 256 + 1)
    message = message[:size]
    joiner = Joiner(limit=size)
    for _ in range(2):  # and then the next one
        chunks = list(split(message))
        assert all(len(chunk) <= CHUNK for chunk in chunks)
        joined = [joiner.add(chunk) for chunk in chunks]
        assert joined[:-1] == [None] * (len(chunks) - 1)
        assert joined[-1] is not None
        assert joined[-1].numpy().tobytes() == message


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_random_chunks_are_refused_or_joined_and_never_above_the_limit(chunks: list[bytes]) -> None:
    joiner = Joiner(limit=64)
    try:
        for chunk in chunks:
            joined = joiner.add(chunk)
            assert joined is None or len(joined) <= 64
    except WireError:
        pass


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
def test_what_is_wrong_is_said(chunks: list[bytes], words: str) -> None:
    *good, bad = chunks
    joiner = Joiner(limit=100)
    assert [joiner.add(chunk) for chunk in good] == [None] * len(good)
    with pytest.raises(WireError, match=words):
        joiner.add(bad)

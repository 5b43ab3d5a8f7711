"""Messages of any length over a stream of short ones: gRPC's own limit stays small, so nobody can make us hold more.

The first chunk of a message begins with its length; the rest follow until it is complete.
"""

import struct
from collections.abc import Iterator

from torch import Tensor

from asfl.field.protocol.wire import WireError, new_buffer

CHUNK = 1 << 20
"""Bytes of a chunk at most."""
_LENGTH = struct.Struct("<Q")


def split(message: bytes) -> Iterator[bytes]:
    """The message in chunks."""
    view = memoryview(message)
    first = CHUNK - _LENGTH.size
    yield _LENGTH.pack(len(message)) + bytes(view[:first])
    for start in range(first, len(message), CHUNK):
        yield bytes(view[start : start + CHUNK])


class Joiner:
    """Puts messages together again, each in a buffer of its own; never one above `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer: Tensor | None = None
        self._filled = 0

    def add(self, chunk: bytes) -> Tensor | None:
        """Take the next chunk; the message if it is complete now."""
        content = memoryview(chunk)
        if self._buffer is None:
            if len(chunk) < _LENGTH.size:
                raise WireError(f"a first chunk of {len(chunk)} bytes: too short")
            (size,) = _LENGTH.unpack_from(content)
            if size > self.limit:
                raise WireError(f"a message of {size:,} bytes, more than the {self.limit:,} agreed on")
            content, self._buffer, self._filled = content[_LENGTH.size :], new_buffer(size), 0
        elif not chunk:
            raise WireError("an empty chunk")
        end = self._filled + len(content)
        if end > len(self._buffer):
            raise WireError(f"a chunk that is {end - len(self._buffer):,} bytes too long")
        self._buffer.numpy()[self._filled : end] = content
        self._filled = end
        if end < len(self._buffer):
            return None
        done, self._buffer = self._buffer, None
        return done

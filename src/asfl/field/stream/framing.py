"""What both ends of a gRPC stream share: one long-lived stream per client carries everything.

The server is the gRPC server, and it is also the one who asks: its side of the stream carries requests, the client's
side answers. gRPC only moves bytes; there is no schema besides `asfl.field.protocol.wire`. Messages of any length go
over it in short chunks, so that gRPC's own limit stays small and no peer can make us hold more: the first chunk of a
message begins with its length, and the rest follow until it is complete.
"""

import re
import struct
from collections.abc import Iterator

from torch import Tensor

from asfl.config.errors import AsflError
from asfl.field.protocol.wire import HEADER_LIMIT, WireError, new_buffer

SERVICE, METHOD, VERSION_KEY = "asfl.Field", "Work", "asfl-version"
GREETING_LIMIT = HEADER_LIMIT + (1 << 12)
"""Bytes of a message before both sides know the network."""
CHUNK = 1 << 20
"""Bytes of a chunk at most."""
_LENGTH = struct.Struct("<Q")

Option = tuple[str, int]
SHARED_OPTIONS: list[Option] = [
    ("grpc.max_send_message_length", CHUNK),
    ("grpc.max_receive_message_length", CHUNK),
    ("grpc.max_metadata_size", 1 << 13),
    # A process that died is noticed at once; a machine that vanished without a word, when it doesn't answer a ping. On
    # a slow link a ping stands in line behind megabytes, so it has time.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 120_000),
    ("grpc.http2.ping_timeout_ms", 120_000),
    ("grpc.http2.max_pings_without_data", 0),
]


def check_address(address: str) -> None:
    """Refuse what isn't host:port."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s/]+):(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise AsflError(f"address '{address}': write it as host:port, for example 127.0.0.1:7400 or [::1]:7400")


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

"""A device that speaks gRPC and says whatever a test likes."""

import queue

import grpc

from asfl._version import __version__
from asfl.field.certificates import SERVER_NAME
from asfl.field.messages import Ready
from asfl.field.stream import METHOD, SERVICE, VERSION_KEY, Identity, split
from asfl.field.wire import Message, encode

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each has a connection of its own, as clients elsewhere do
    ("grpc.ssl_target_name_override", SERVER_NAME),
]
READY = Ready("one")


class Impostor:
    def __init__(self, address: str, identity: Identity, version: str = __version__) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        key, certificate, authority = identity
        shown = grpc.ssl_channel_credentials(authority, key, certificate)
        self._channel = grpc.secure_channel(address, shown, _OPTIONS)
        work: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call = work(iter(self._outbox.get, None), metadata=((VERSION_KEY, version),), timeout=1200)

    def says(self, *chunks: bytes) -> None:
        """Chunks; each goes out when the one before has."""
        for chunk in chunks:
            self._outbox.put(chunk)

    def hears(self) -> bytes:
        return next(iter(self._call))

    def leaves(self) -> None:
        self._call.cancel()
        self._channel.close()

    def is_refused_with(self) -> grpc.StatusCode:
        """How the server ends the stream."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        self._outbox.put(None)
        self._channel.close()
        return self._call.code()


def words_of(message: Message) -> list[bytes]:
    return list(split(encode(message)))

"""Somebody who speaks gRPC and says whatever they like."""

import queue

import grpc

from asfl._version import __version__
from asfl.field.protocol.codec import Message, encode
from asfl.field.protocol.messages import Ready
from asfl.field.stream.chunks import split
from asfl.field.stream.common import CREDENTIAL_KEY, METHOD, SERVICE, VERSION_KEY

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # everybody has a connection of their own, as clients elsewhere do
]
READY = Ready("one")


class Impostor:
    def __init__(self, address: str, credential: str, version: str = __version__) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        work: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        metadata = ((CREDENTIAL_KEY, credential), (VERSION_KEY, version))
        self._call = work(iter(self._outbox.get, None), metadata=metadata, timeout=1200)

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

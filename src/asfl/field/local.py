"""Clients in this process, each a thread of a pool; messages are encoded and decoded as on a network."""

from concurrent.futures import Executor, Future
from time import monotonic

from asfl.config.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.links import LinkError, failed
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Answer, AnyRequest


class LocalLink:
    """`asfl.field.links.Link` to a client in this process."""

    def __init__(self, node: ClientNode, pool: Executor) -> None:
        self._node, self._pool = node, pool
        self._latest: Future[Answer] | None = None
        self.generation = 0

    @property
    def trouble(self) -> str | None:
        return "still busy" if self._latest is not None and not self._latest.done() else None

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        if self.trouble is not None:
            return failed(LinkError(self.trouble))
        try:
            self._latest = self._pool.submit(self._answer, encode(request), monotonic() + deadline_s)
        except (AsflError, RuntimeError) as error:  # a pool that was shut down
            return failed(error)
        return self._latest

    def _answer(self, request: bytes, due: float) -> Answer:
        if monotonic() > due:
            raise LinkError("the request was too late")
        return decode(self._node.answer(request), Answer, self._node.largest_message)

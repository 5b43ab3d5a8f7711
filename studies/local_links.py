"""Links to clients in this process, for studies and tests."""

import time
from concurrent.futures import Executor, Future

from asfl.config.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.messages import Answer, AnyRequest, LinkError, failed
from asfl.field.wire import decode, encode


class LocalLink:
    """A link to a client in this process."""

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
            self._latest = self._pool.submit(self._answer, encode(request), time.monotonic() + deadline_s)
        except (AsflError, RuntimeError) as error:  # a pool that was shut down
            return failed(error)
        return self._latest

    def _answer(self, request: bytes, due: float) -> Answer:
        if time.monotonic() > due:
            raise LinkError("the request was too late")
        return decode(self._node.answer(request), Answer, self._node.largest_message)

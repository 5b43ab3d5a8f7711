"""What runs on a node of a Ray cluster: a process that is one client."""

import threading
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.runs.engines.ray import Actor


class ClientActor(Actor):
    """Holds a `ClientNode` and answers for it. A Ray actor of two threads, of which `stay` takes one."""

    def stay(self) -> None:
        """Never answers, so that whoever has asked learns when this process ends."""
        threading.Event().wait()

    def begin(self, welcome: bytes, data_dir: str | None) -> str:
        """Become the client the welcome is for. The answer says why that can't be; it is empty if all is well."""
        # Imported only now: before, the versions are compared, and another one may have other modules.
        import torch

        from asfl.field.client import ClientNode
        from asfl.field.protocol.codec import decode
        from asfl.field.protocol.messages import Welcome
        from asfl.train.device import keep_freed_memory

        keep_freed_memory()
        try:
            self._node = ClientNode(decode(welcome, Welcome), Path(data_dir) if data_dir else None)
        except AsflError as error:
            return str(error)
        torch.set_num_threads(self._node.threads)
        return ""

    def handle(self, request: bytes) -> bytes:
        """A request and its answer, as `asfl.field.protocol.codec` encodes them."""
        return self._node.answer(request)

"""What runs on a node of a Ray cluster: a process that is one client."""

import threading
from pathlib import Path

from asfl._version import __version__
from asfl.engines.ray_node import end_with_node, enter_folder
from asfl.errors import AsflError


class ClientActor:
    """Holds a `ClientNode` and answers for it. A Ray actor of two threads, of which `stay` takes one."""

    def __init__(self, current_folder: str) -> None:
        """`current_folder`: the driver's, where relative paths begin."""
        enter_folder(current_folder)

    def stay(self) -> None:
        """Never answers, so that whoever has asked learns when this process ends."""
        threading.Event().wait()

    def begin(self, version: str, welcome: bytes, data_dir: str | None) -> str:
        """Become the client the welcome is for; why that can't be, or nothing if it is so."""
        end_with_node()
        if version != __version__:
            return f"its node has asfl {__version__}, and here it is {version}; all nodes need the same version"
        # Imported once the version is right, so that this is what one is told if it isn't.
        import torch

        from asfl.field.client import ClientNode
        from asfl.field.wire import decode
        from asfl.train.memory import keep_freed_memory

        keep_freed_memory()
        try:
            self._node = ClientNode(decode(welcome), Path(data_dir) if data_dir else None)
        except AsflError as error:
            return str(error)
        torch.set_num_threads(self._node.threads)
        return ""

    def handle(self, request: bytes) -> bytes:
        """A request and its answer, as `asfl.field.wire` encodes them."""
        from asfl.field.wire import Message, WireError, decode, encode

        asked = decode(request, self._node.largest_message)
        answer = self._node.handle(asked)
        try:
            return encode(answer)
        except WireError as error:
            return encode(Message("error", {"request": asked.op, "reason": str(error)}))

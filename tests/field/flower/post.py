"""Flower's post office without Flower: what the ServerApp sends is kept, and a test writes the replies."""

from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from asfl.field.flower.session import Farewell, Session

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages can't be made without


class Post(Grid):
    """Nodes that a test plays."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = list(nodes)
        self.sent: list[Message] = []
        self._replies: list[Message] = []
        self.asked = 0
        """How often replies were looked for."""

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def get_nodes(self) -> Iterable[NodeInfo]:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"  # as Flower does it
            self.sent.append(message)
            yield message.metadata.message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.asked += 1
        asked = set(message_ids)
        ready = [reply for reply in self._replies if reply.metadata.reply_to_message_id in asked]
        self._replies = [reply for reply in self._replies if reply not in ready]
        return ready

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    # ------------------------------------------------------------------ what a test does
    def sessions(self, node: int) -> list[Session]:
        """What this node was sent."""
        return [Session.of(message.content) for message in self.sent if message.metadata.dst_node_id == node]

    def reply(self, node: int, farewell: Farewell | Error) -> None:
        """To the newest message."""
        newest = [message for message in self.sent if message.metadata.dst_node_id == node][-1]
        if isinstance(farewell, Error):
            self._replies.append(Message(farewell, reply_to=newest))
        else:
            self._replies.append(Message(farewell.content(), reply_to=newest))


def context_of(node_config: dict[str, bool | int | float | str]) -> Context:
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={})

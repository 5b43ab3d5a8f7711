"""The Flower app with everything but Flower's own processes: messages go to its ClientApp in threads."""

import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from small_runs import comparable, tiny

from asfl.config import Resolved, by_name
from asfl.config.errors import AsflError
from asfl.config.show import as_toml
from asfl.field import flower
from asfl.runs.manifest import MODEL_FILE, read_manifest
from asfl.runs.records import read_records
from asfl.runs.run import run

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages can't be made without


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The apps let asfl speak in the process they are in, which elsewhere is one of Flower's."""
    logger = logging.getLogger("asfl")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


class Nodes(Grid):
    """Each with a home of its own; `deaf` ones lose the first message, as if their process had died."""

    def __init__(self, homes: dict[int, Path], deaf: Iterable[int] = ()) -> None:
        self._homes, self._deaf = homes, set(deaf)
        self.replies: dict[str, Message] = {}
        self.sent = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self._homes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            self.sent += 1
            number, node = f"message {self.sent}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = number  # as Flower does it
            answer = self._lose if node in self._deaf else self._answer
            self._deaf.discard(node)
            threading.Thread(target=answer, args=(number, message, node), daemon=True).start()
            yield number

    def _answer(self, number: str, message: Message, node: int) -> None:
        home: dict[str, Any] = {"home": str(self._homes[node])}
        self.replies[number] = flower.client_app(message, context_of(node_config=home))

    def _lose(self, number: str, message: Message, node: int) -> None:
        self.replies[number] = Message(RecordDict(), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_nodes(self) -> Iterable[NodeInfo]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def context_of(node_config: dict[str, Any] | None = None, run_config: dict[str, Any] | None = None) -> Context:
    return Context(run_id=1, node_id=1, node_config=node_config or {}, state=RecordDict(), run_config=run_config or {})


def test_a_run_and_the_rest_of_it_have_the_bits_of_a_single_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that dies gets its message again; nodes come back with the keys they have."""
    monkeypatch.setattr(flower, "_AGAIN_EVERY_S", 0.0)
    short, whole = (tiny("scenario.clients=2", "radio.num_rbs=2", rounds=rounds) for rounds in (2, 4))
    homes = {node: tmp_path / f"node{node}" for node in (11, 22)}
    for config, deaf in ((short, [22]), (whole, [])):
        file = tmp_path / "tiny.toml"
        file.write_text(as_toml(Resolved(config, dict.fromkeys(by_name(config.model_dump()), ""))))
        nodes = Nodes(homes, deaf)
        flower.server_app(nodes, context_of(run_config={"base": str(file), "out": str(tmp_path / "run")}))
        assert nodes.sent == 2 + len(deaf)
    assert run(whole, "asfl", tmp_path / "here", threads=read_manifest(tmp_path / "run").threads)
    found, here = tmp_path / "run", tmp_path / "here"
    first, _, *rest = comparable(read_records(found))  # the second was the last once, and was evaluated as that
    assert [first, *rest] == [record for record in comparable(read_records(here)) if record.round != 2]
    assert (found / MODEL_FILE).read_bytes() == (here / MODEL_FILE).read_bytes()


def test_a_node_without_a_place_says_so_and_leaves(tmp_path: Path) -> None:
    told = {"name": "node-3", "enrolment": "127.0.0.1:1", "stream": "127.0.0.1:1", "code": ""}
    with pytest.raises(AsflError, match="has no place for node-3"):
        flower._join(RecordDict({"asfl": ConfigRecord(dict(told))}), {"home": str(tmp_path)})
    message = Message(RecordDict(), 3, "train")
    message.metadata.__dict__["_message_id"] = "1"
    assert "isn't understood" in flower._reason(flower.client_app(message, context_of()))


def test_mistakes_in_the_run_config(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="did you mean 'wait-s'"):
        flower.main(Nodes({}), context_of(run_config={"wait": 1.0}))
    with pytest.raises(AsflError, match="needs as many nodes, but 0 came"):
        flower.main(Nodes({}), context_of(run_config={"wait-s": 0.001}))

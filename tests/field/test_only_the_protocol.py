"""A device does what the protocol has, and nothing else: the rest is refused in one sentence and changes nothing."""

import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
import torch
from hypothesis import given, settings, strategies as st
from test_client import CUT, NOW, asked, backward, expect, forward, layers, node_of, state_of, sync

from asfl.field import messages as msg
from asfl.field.client import ClientNode
from asfl.field.messages import Answer
from asfl.field.wire import _CLASSES, MAGIC, VERSION, decode, encode, pack

REQUESTS = {name: kind for name, kind in _CLASSES.items() if issubclass(kind, msg.Request) and kind is not msg.Request}
_OTHER_DOINGS = {"open", "os.remove", "os.rename", "os.mkdir", "os.chmod", "os.system", "os.exec", "os.posix_spawn",
                 "subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "exec"}  # fmt: skip
_seen: list[tuple[str, Any]] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event in _OTHER_DOINGS:
        _seen.append((event, arguments[0] if arguments else None))


sys.addaudithook(_watch)  # for ever: nothing can take it away, and it is quick


@pytest.fixture
def doings() -> Iterator[list[tuple[str, Any]]]:
    """What this process does with files, processes and the network."""
    global _seen
    _seen = []
    yield _seen
    _seen = None


@pytest.fixture(scope="module")
def node() -> ClientNode:
    made = node_of()
    sync(made)
    return made


def refused(node: ClientNode, data: bytes) -> str:
    """One sentence that can be shown anywhere; and the client is as before."""
    before, where = state_of(node), (node.round_index, node._open, node._done)
    reason = expect(msg.Refusal, decode(node.answer(data), Answer)).reason
    assert reason.isprintable()
    assert 0 < len(reason) <= 500
    assert (node.round_index, node._open, node._done) == where
    for name, tensor in state_of(node).items():
        assert torch.equal(tensor, before[name])
    return reason


def test_every_request_has_one_who_does_it_and_nothing_else_has() -> None:
    done = set(vars(ClientNode)["_do"].dispatcher.registry) - {object}
    assert done == set(REQUESTS.values())


def test_no_request_names_anything() -> None:
    """All they carry are whole numbers, yes and no, and tensors: no path, no command, no address."""

    def leaves(kind: type) -> Iterator[str]:
        for name, hint in get_type_hints(kind).items():
            if name in {field.name for field in fields(kind)}:
                yield str(hint)

    kinds = [*REQUESTS.values(), msg.Memory, msg.Codes]
    assert not [hint for kind in kinds for hint in leaves(kind) if "str" in hint or "Any" in hint or "dict" in hint]


def test_answers_and_greetings_are_no_requests(node: ClientNode) -> None:
    for name in set(_CLASSES) - set(REQUESTS):
        nothing = "nothing a client does" if name == "request" else "instead of a message of kind request"
        assert nothing in refused(node, pack(name, {}, {}))


@given(
    st.one_of(st.sampled_from(sorted(REQUESTS)), st.from_regex("[a-z]{1,12}", fullmatch=True)),
    st.dictionaries(
        st.sampled_from(["path", "file", "data", "command", "cut", "round", "after", "step", "side", "memory"]),
        st.one_of(
            st.text(max_size=30), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text(), max_size=2)
        ),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=60)
def test_words_where_numbers_belong(node: ClientNode, op: str, said: dict[str, Any]) -> None:
    refused(node, pack(op, said, {}))


@pytest.mark.parametrize("path", ["/etc/passwd", "../../secret.npz", "C:\\secret", "http://example.org/x"])
@pytest.mark.parametrize("op", ["sync", "forward", "probe", "ping", "bye"])
def test_names_of_files(node: ClientNode, op: str, path: str, doings: list[tuple[str, Any]]) -> None:
    refused(node, pack(op, {"round": 0, "after": 0, "file": path}, {}))
    refused(node, pack(op, {"round": path}, {}))
    assert doings == []
    assert not node.said_bye


def test_what_is_too_large(node: ClientNode) -> None:
    data = encode(msg.Probe(data=torch.zeros(node.largest_message, dtype=torch.uint8)))
    assert "more than the" in refused(node, data)


@pytest.mark.parametrize("data", [b"", b"x" * 11, MAGIC, MAGIC + bytes(8), MAGIC + bytes([VERSION]) + b"\xff" * 100])
def test_what_is_no_message(node: ClientNode, data: bytes) -> None:
    refused(node, data)


def test_it_opens_nothing_while_it_works(doings: list[tuple[str, Any]]) -> None:
    """No file, process or connection: neither for what it does nor for what it refuses."""
    node = node_of()
    sync(node)
    backward(node, forward(node))  # what PyTorch imports when it is first used
    node = node_of()
    doings.clear()
    sync(node)
    packet = forward(node)
    expect(msg.Update, backward(node, packet))
    expect(msg.Side, asked(node, msg.Shrink(1, send=True, **{**NOW, "round": 1})))
    expect(msg.Where, asked(node, msg.Grow(CUT, layers(node, 1, CUT), round=2, after=1)))
    expect(msg.ClientState, asked(node, msg.Gather(memory=True, round=2, after=2)))
    expect(msg.Probed, asked(node, msg.Probe(answer_bytes=100)))
    expect(msg.Refusal, asked(node, msg.Give(round=2, after=2)))
    expect(msg.Refusal, asked(node, msg.Score(layers(node, 0, node._layout.num_units))))
    expect(msg.Refusal, asked(node, msg.Calibrate(layers(node, 0, node._layout.num_units))))
    expect(msg.Where, asked(node, msg.Bye()))
    assert doings == []

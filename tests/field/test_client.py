"""A client by itself: it does what fits its state and the protocol, and refuses the rest with a reason, unharmed."""

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from small_runs import agreement_of, tiny

from asfl.config.errors import AsflError
from asfl.data import load_data, partition
from asfl.field import messages as msg
from asfl.field.client import ClientNode, _with_own_files
from asfl.field.messages import Answer, AnyRequest, Blueprint
from asfl.field.wire import _CLASSES, decode, encode, pack, unpack
from asfl.train.fleet import FirstLayers, Packet
from asfl.train.optimizers import OptimizerState
from asfl.train.quantise import Quantised, QuantisedLayers
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

CUT = 3
NOW: dict[str, Any] = {"round": 0, "after": 0}
M = TypeVar("M", bound=Answer)


def node_of(scheme: str = "asfl", *overrides: str, client: int = 1) -> ClientNode:
    return ClientNode(agreement_of(tiny(*overrides), scheme).welcome(client))


def layers(node: ClientNode, first: int, last: int, value: float = 0.01) -> ModelVectors:
    a, b = node._layout.parameter_edges, node._layout.statistic_edges
    return ModelVectors(torch.full((int(a[last] - a[first]),), value), torch.ones(int(b[last] - b[first])))


def asked(node: ClientNode, request: AnyRequest) -> Answer:
    """As over a network."""
    return decode(node.answer(encode(request)), Answer)


def expect(kind: type[M], answer: Answer) -> M:
    assert isinstance(answer, kind), answer
    return answer


def sync(node: ClientNode, round_index: int = 0, cut: int = CUT) -> None:
    assert where(asked(node, msg.Sync(cut, layers(node, 0, cut), round=round_index))) == (round_index, cut)


def where(answer: Answer) -> tuple[int | None, int]:
    found = expect(msg.Where, answer)
    return found.round, found.cut


def task(step: int = 0, cut: int = CUT, bits: int = 32, batch: int | None = None) -> Task:
    return Task(0, 1, cut, step, bits, batch)


def forward(
    node: ClientNode, round_index: int = 0, after: int = 0, wanted: Task | None = None, side: FirstLayers | None = None
) -> Answer:
    return asked(node, msg.Forward(wanted or task(), side, round=round_index, after=after))


def backward(node: ClientNode, packet: Answer, round_index: int = 0, step: int = 0, value: float = 1e-3) -> Answer:
    carry = expect(msg.Activations, packet).packet.carry
    gradients = tuple(torch.full_like(one, value) for one in carry if isinstance(one, torch.Tensor))
    return asked(node, msg.Backward(task(step), gradients, round=round_index, after=round_index))


def back(node: ClientNode, *gradients: torch.Tensor) -> Answer:
    """After a forward pass, from these gradients."""
    expect(msg.Activations, forward(node))
    return asked(node, msg.Backward(task(), gradients, **NOW))


def assert_refused(answer: Answer, words: str) -> None:
    assert words in expect(msg.Refusal, answer).reason


def state_of(node: ClientNode, after: int = 0) -> dict[str, torch.Tensor]:
    found = expect(msg.ClientState, asked(node, msg.Gather(memory=True, round=after, after=after)))
    assert found.memory is not None
    steps = torch.from_numpy(found.memory.steps)
    return {"parameters": found.side.parameters.clone(), "moments": found.memory.moments.clone(), "steps": steps}


def test_it_holds_its_own_samples_only() -> None:
    config = tiny()
    node, data = node_of(client=2), load_data(config)
    own = partition(data.train_labels, config.scenario.clients, config.data.dirichlet_alpha, config.scenario.seed)[2]
    assert len(node._batches._labels) == len(own)
    assert sorted(node._batches._labels.tolist()) == sorted(data.train_labels[own].tolist())


def test_a_step_changes_its_side_and_its_optimiser() -> None:
    node = node_of()
    sync(node)
    before = state_of(node)
    packet = expect(msg.Activations, forward(node))
    (carry,) = packet.packet.carry
    assert isinstance(carry, torch.Tensor)
    assert carry.is_contiguous(memory_format=torch.channels_last)
    norm = expect(msg.Update, backward(node, packet)).norm2
    after = state_of(node)
    moved = (after["parameters"] - before["parameters"]).square().sum()
    assert float(norm) == pytest.approx(float(moved), rel=1e-4)
    assert after["steps"].tolist() == [1] * CUT + [0] * (node._layout.num_units - CUT)
    assert_refused(asked(node, msg.Give(task(), **NOW)), "client sides are kept")


def test_layers_come_and_go() -> None:
    node = node_of()
    sync(node)
    assert where(asked(node, msg.Grow(5, layers(node, CUT, 5, 0.5), round=1, after=0))) == (1, 5)
    a = int(node._layout.parameter_edges[CUT])
    grown = state_of(node, 1)["parameters"]
    assert (grown[:a] == 0.01).all()
    assert (grown[a:] == 0.5).all()
    sent = expect(msg.Side, asked(node, msg.Shrink(CUT, send=True, round=2, after=1))).layers
    assert sent is not None
    assert torch.equal(sent.received(torch.zeros(())).parameters, grown[a:])
    assert len(state_of(node, 2)["parameters"]) == a
    assert expect(msg.Side, asked(node, msg.Shrink(1, send=False, round=3, after=2))).layers is None
    assert where(asked(node, msg.Ping())) == (3, 1)


def test_reported_columns() -> None:
    node = node_of()
    sync(node)
    values = state_of(node)["parameters"]
    columns = np.array([0, 3, 4, len(values) - 1])
    gaps = torch.from_numpy(np.diff(columns, prepend=0))
    assert torch.equal(expect(msg.Values, asked(node, msg.Sample(gaps, **NOW))).values, values[columns])


# ---------------------------------------------------------------------- out of order
def test_stale_state_is_never_used_silently() -> None:
    node = node_of()
    assert_refused(forward(node), "sync comes first")
    assert where(asked(node, msg.Ping())) == (None, 0)
    sync(node, 4)
    assert_refused(forward(node, 5, after=3), "for a state of round 3, but here it is of round 4")
    assert_refused(forward(node, 3, after=4), "round 3 is over")
    expect(msg.Activations, forward(node, 5, after=4))
    assert_refused(forward(node, 6, after=4), "here it is of round 5")


Ask = Callable[[ClientNode], Answer]


def raw(node: ClientNode, op: str, **fields: Any) -> Answer:
    """What can't be declared."""
    return decode(node.answer(pack(op, fields, [])), Answer)


ONE = torch.ones(1)
OCTET = torch.ones(1, dtype=torch.uint8)
FEW = QuantisedLayers(OCTET, ONE, ONE, 8, OCTET)
AHEAD: dict[str, Any] = {"round": 1, "after": 0}


def share(node: ClientNode, depth: int, parameters: torch.Tensor | QuantisedLayers, statistics: int = 1) -> Answer:
    average = FirstLayers(parameters, layers(node, 0, statistics).statistics)
    return asked(node, msg.Share(depth, average, **NOW))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda n: raw(n, "dance"), "'dance' instead of a message of kind request"),
        (lambda n: raw(n, "request"), "nothing a client does"),
        (lambda n: decode(n.answer(b"garbage, and more of it"), Answer), "not a message"),
        (lambda n: raw(n, "ping", file="/etc/passwd"), "'file' is not a field"),
        (lambda n: asked(n, msg.Forward(task())), "it must say its round"),
        (lambda n: forward(n, wanted=task(cut=CUT + 1)), "this client holds 3 layers"),
        (lambda n: forward(n, wanted=task(cut=99)), "cut = 99"),
        (lambda n: forward(n, wanted=task(cut=0)), "cut = 0"),
        (lambda n: forward(n, wanted=task(step=1)), "step = 1"),
        (lambda n: forward(n, wanted=task(bits=5)), "bits = 5"),
        (lambda n: forward(n, wanted=task(batch=0)), "batch = 0 must be 1 …"),
        (lambda n: forward(n, wanted=task(batch=10**6)), "batch = 1000000 must be 1 …"),
        (lambda n: asked(n, msg.Backward(task(), (ONE,), **NOW)), "no forward pass"),
        (lambda n: backward(n, forward(n), step=1), "no forward pass of round 0, step 1"),
        (lambda n: backward(n, forward(n), round_index=1), "meant for a state of round 1"),
        (lambda n: back(n), "gradients has 0 tensors, not 1"),
        (lambda n: back(n, ONE), "gradients.0 is float32"),
        (lambda n: asked(n, msg.Upload(task(cut=1, bits=4), **NOW)), "isn't done"),
        (lambda n: share(n, 0, ONE), "depth = 0 must be 1 … 3"),
        (lambda n: share(n, CUT + 1, ONE), "depth = 4 must be 1 … 3"),
        (lambda n: share(n, 1, FEW), "parameters.codes is uint8"),
        (lambda n: asked(n, msg.Give(task(), **NOW)), "isn't done"),
        (lambda n: asked(n, msg.Moved(task(), **NOW)), "isn't done"),
        (lambda n: asked(n, msg.Grow(2, layers(n, 0, 0), **AHEAD)), "cut = 2"),
        (lambda n: asked(n, msg.Grow(5, layers(n, CUT, 4), **AHEAD)), "not float32"),
        (lambda n: asked(n, msg.Shrink(3, send=True, **AHEAD)), "cut = 3"),
        (lambda n: asked(n, msg.Sync(2, layers(n, 0, 3), round=1)), "not float32"),
        (lambda n: asked(n, msg.Sync(99, layers(n, 0, 3), round=1)), "cut = 99"),
        (lambda n: asked(n, msg.Sync(1, layers(n, 0, 1), memory_of(n, 3), round=1)), "no whole number of layers"),
        (lambda n: asked(n, msg.Sample(torch.tensor([10**9]), **NOW)), "a column that isn't"),
        (lambda n: asked(n, msg.Project(CUT, **NOW)), "above = 3 must be 0 … 2"),
        (lambda n: asked(n, msg.Learn(task(), **NOW)), "cut = 3 must be"),
        (lambda n: asked(n, msg.Score(layers(n, 0, n._layout.num_units))), "not private here"),
        (lambda n: asked(n, msg.Probe(answer_bytes=1 << 30)), "answer_bytes = 1073741824"),
        (lambda n: asked(n, msg.Probe(data=torch.zeros(n.largest_message, dtype=torch.uint8))), "more than the"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(ask: Ask, words: str) -> None:
    node = node_of()
    sync(node)
    before = state_of(node)
    assert_refused(ask(node), words)
    after = state_of(node)
    for name in before:
        assert torch.equal(before[name], after[name])


def memory_of(node: ClientNode, width: int, steps: int = 0) -> OptimizerState:
    return OptimizerState(torch.ones(2, width), np.full(node._layout.num_units, steps))


def test_exchanged_sides_must_come_along() -> None:
    node = node_of("sfl")
    assert_refused(asked(node, msg.Sync(2, layers(node, 0, 2), round=0)), "aren't kept in this scheme")
    sync(node, cut=0)
    assert_refused(forward(node), "layers are missing")
    given = layers(node, 0, CUT)
    packet = forward(node, side=FirstLayers(given.parameters, given.statistics))
    assert_refused(asked(node, msg.Give(task(), **NOW)), "isn't done")
    backward(node, packet)
    side = expect(msg.Side, asked(node, msg.Give(task(), **NOW))).layers
    assert side is not None
    assert isinstance(side.parameters, torch.Tensor)
    assert not torch.equal(side.parameters, given.parameters)


def test_several_steps_in_order() -> None:
    node = node_of("asfl", "training.local_steps=2")
    sync(node)
    assert_refused(forward(node, wanted=task(1)), "doesn't follow")
    backward(node, forward(node))
    assert_refused(asked(node, msg.Moved(task(), **NOW)), "isn't done")
    backward(node, forward(node, wanted=task(1)), step=1)
    assert float(expect(msg.Update, asked(node, msg.Moved(task(), **NOW))).norm2) > 0


def test_after_a_failure_inside_it_wants_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of()
    sync(node)

    def breaks(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(node._fleet, "forward", breaks)
    assert_refused(forward(node), "RuntimeError: out of memory")
    assert_refused(forward(node), "sync comes first")
    sync(node, 2)
    expect(msg.Activations, forward(node, 2, after=2))


# ---------------------------------------------------------------------- what it is told at the beginning
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"training": {"rounds": -1}}}, "training.rounds = -1 must be"),
        ({"config": {"nonsense": 1}}, "unknown key 'nonsense'"),
        ({"config": None}, "the server's config"),
        ({"scheme": "asfll"}, "unknown scheme 'asfll'"),
        ({"threads": 5000}, "agreement.threads = 5000"),
    ],
)
def test_a_bad_welcome_is_refused(change: dict[str, Any], words: str) -> None:
    op, fields, tensors = unpack(encode(agreement_of(tiny(), "asfl").welcome(0)))
    fields["agreement"] |= change
    with pytest.raises(AsflError, match=words):
        ClientNode(decode(pack(op, fields, tensors), msg.Welcome))
    with pytest.raises(AsflError, match="client = 4"):
        ClientNode(agreement_of(tiny(), "asfl").welcome(4))


def test_the_server_does_not_choose_which_files_are_read(tmp_path: Path) -> None:
    images, labels = np.zeros((40, 8, 8), dtype=np.uint8), np.arange(40) % 10
    for folder in ("servers", "own"):
        (tmp_path / folder).mkdir()
    for file in ("own/pictures.npz", "servers/secret.npz"):
        np.savez(tmp_path / file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    config = tiny(f"data.name={tmp_path / 'servers' / 'pictures.npz'}")
    ClientNode(agreement_of(config, "asfl").welcome(0), tmp_path / "own")
    secret = tiny(f"data.name={tmp_path / 'servers' / 'secret.npz'}")
    with pytest.raises(AsflError, match=r"own/secret.npz': no such file"):
        ClientNode(agreement_of(secret, "asfl").welcome(0), tmp_path / "own")


@pytest.mark.parametrize("name", ["mine", "~", "..", "other/..", "elsewhere/mine", "."])
def test_nor_folders(name: str, tmp_path: Path) -> None:
    """Whatever the server calls it, it is looked for inside the client's own."""
    config = tiny().model_copy(update={"data": tiny().data.model_copy(update={"name": name})})
    for own, folder in ((tmp_path, tmp_path), (None, Path.cwd())):
        found = Path(_with_own_files(config, own).data.name)
        assert folder in (found, found.parent)
        assert found.name != ".."


def test_it_knows_whether_a_welcome_is_to_the_same_run() -> None:
    agreement = agreement_of(tiny(), "asfl")
    node = ClientNode(agreement.welcome(1))
    assert node.fits(agreement.welcome(1))
    assert not node.fits(agreement.welcome(2))
    assert not node.fits(agreement_of(tiny("scenario.seed=9"), "asfl").welcome(1))


def test_the_largest_message_is_large_enough_and_not_much_more() -> None:
    config = tiny("model.width=1", "training.batch_size=64")
    blueprint = Blueprint.of(config)
    shapes = blueprint.shapes
    packet = Packet((torch.ones(shapes.carries[1][0]),), torch.ones(64, dtype=torch.int64))
    size, units = shapes.layout.num_parameters, np.ones(shapes.layout.num_units, np.int64)
    client = msg.ClientState(ModelVectors(torch.ones(size), torch.ones(0)), OptimizerState(torch.ones(2, size), units))
    largest = max(len(encode(message)) for message in (msg.Activations(packet), client))
    assert largest < blueprint.largest_message < largest + 1_200_000


# ---------------------------------------------------------------------- nothing but the protocol
REQUESTS = {name: kind for name, kind in _CLASSES.items() if issubclass(kind, msg.Request) and kind is not msg.Request}
_OTHER_DOINGS = {"open", "os.remove", "os.rename", "os.mkdir", "os.chmod", "os.system", "os.exec", "os.posix_spawn",
                 "subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "exec"}  # fmt: skip
_seen: list[tuple[str, Any]] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event in _OTHER_DOINGS:
        _seen.append((event, arguments[0] if arguments else None))


sys.addaudithook(_watch)  # for ever: nothing can take it away, and it is quick


def test_every_request_is_handled_and_nothing_else_is() -> None:
    assert set(vars(ClientNode)["_do"].dispatcher.registry) - {object} == set(REQUESTS.values())


def test_no_request_names_anything() -> None:
    """All they carry are whole numbers, yes and no, and tensors: no path, no command, no address."""
    kinds = [*REQUESTS.values(), Task, FirstLayers, ModelVectors, OptimizerState, Quantised, QuantisedLayers]
    hints = [str(get_type_hints(kind)[field.name]) for kind in kinds for field in fields(kind)]
    assert not [hint for hint in hints if "str" in hint or "typing.Any]" in hint or "dict" in hint]


@pytest.fixture(scope="module")
def node() -> ClientNode:
    made = node_of()
    sync(made)
    return made


@given(
    st.one_of(st.sampled_from(sorted(REQUESTS)), st.from_regex("[a-z]{1,12}", fullmatch=True)),
    st.dictionaries(
        st.sampled_from(["path", "file", "data", "command", "cut", "round", "after", "task", "side", "memory"]),
        st.one_of(st.text(max_size=30), st.floats(-9, 9), st.lists(st.text(), max_size=2)),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=60)
def test_words_where_numbers_belong(node: ClientNode, op: str, said: dict[str, Any]) -> None:
    """One sentence that can be shown anywhere; and the client is as before."""
    before, place = state_of(node), (node.round_index, node._open, node._done)
    reason = expect(msg.Refusal, decode(node.answer(pack(op, said, [])), Answer)).reason
    assert reason.isprintable()
    assert 0 < len(reason) <= 500
    assert (node.round_index, node._open, node._done, node.said_bye) == (*place, False)
    for name, tensor in state_of(node).items():
        assert torch.equal(tensor, before[name])


def test_it_opens_nothing_while_it_works() -> None:
    """No file, process or connection: neither for what it does nor for what it refuses."""
    global _seen
    node = node_of()
    sync(node)
    backward(node, forward(node))  # what PyTorch imports when it is first used
    node, _seen = node_of(), []
    _seen.clear()
    sync(node)
    packet = forward(node)
    expect(msg.Update, backward(node, packet))
    expect(msg.Side, asked(node, msg.Shrink(1, send=True, round=1, after=0)))
    expect(msg.Where, asked(node, msg.Grow(CUT, layers(node, 1, CUT), round=2, after=1)))
    expect(msg.ClientState, asked(node, msg.Gather(memory=True, round=2, after=2)))
    expect(msg.Probed, asked(node, msg.Probe(answer_bytes=100)))
    for refused in (msg.Give(task(), round=2, after=2), msg.Calibrate(layers(node, 0, node._layout.num_units))):
        expect(msg.Refusal, asked(node, refused))
    expect(msg.Refusal, raw(node, "probe", file="/etc/passwd"))
    expect(msg.Where, asked(node, msg.Bye()))
    done, _seen = _seen, None
    assert done == []

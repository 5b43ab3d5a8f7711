"""Laws of timelines: never slower than the paper's stages, never faster than a chain of steps or a busy resource."""

from itertools import pairwise, permutations

import numpy as np
from hypothesis import given, strategies as st

from asfl.costs.timeline import ALL, AT_SERVER, PARTS, Floats, Shape, Timeline, graph_of

SHAPES = st.builds(
    Shape,
    clients=st.integers(1, 5),
    slices=st.integers(1, 4),
    turns=st.integers(0, 5),
    whole_client=st.booleans(),
    whole_server=st.booleans(),
    local=st.sampled_from([False, False, True]),
    in_sequence=st.sampled_from([False, False, True]),
    joint_backward=st.booleans(),
).map(
    lambda shape: shape._replace(
        turns=shape.turns * (not shape.in_sequence), in_sequence=shape.in_sequence and not shape.local
    )
)
SEEDS = st.integers(0, 10_000)


def drawn_parts(shape: Shape, seed: int) -> Floats:
    """[10, N] seconds; some clients sit out."""
    random = np.random.default_rng(seed)
    parts = random.exponential(size=(10, shape.clients)) * random.choice([0.1, 1.0, 10.0], size=(10, 1))
    parts[:, random.random(shape.clients) < 0.2] = 0.0
    parts[random.integers(2)] = 0.0  # layers move one way
    if shape.local:
        parts[[0, 1, 5, 6, 7, 9]] = 0.0
    if not shape.joint_backward or shape.turns:
        parts[6] = 0.0
    return np.asarray(parts)


def stages_s(shape: Shape, parts: Floats) -> float:
    """(7), (10), (15) and (16)."""
    reduce = np.sum if shape.in_sequence else np.max
    before, behind = parts[2:5].sum(0), parts[7:].sum(0)
    if shape.local:
        before, behind = before + behind, 0.0 * behind
    elif shape.own_loss:
        before, behind = before + parts[8], behind - parts[8]
    return float(reduce(parts[:2].sum(0)) + reduce(before) + parts[5:7].sum() + reduce(behind))


@given(SHAPES, SEEDS)
def test_never_slower_than_stages(shape: Shape, seed: int) -> None:
    parts = drawn_parts(shape, seed)
    assert Timeline.of(shape, parts).delay_s <= stages_s(shape, parts) * (1 + 1e-12)


@given(SHAPES, SEEDS, st.integers(1, 3))
def test_steps_wait_for_what_they_need_and_for_their_resource(shape: Shape, seed: int, servers: int) -> None:
    parts = drawn_parts(shape, seed)
    timeline = Timeline.of(shape, parts, servers)
    graph, begin, end = timeline.graph, timeline.begin_s, timeline.end_s
    for step, (start, stop) in enumerate(zip(graph.first, graph.first[1:], strict=False)):
        assert (end[graph.after[start:stop]] <= begin[step] + 1e-9).all()
    busy = np.flatnonzero(timeline.seconds > 0)
    for resource in range(4):
        for client in range(-1, shape.clients):
            steps = busy[(graph.resource[busy] == resource) & ((graph.client[busy] == client) | (resource == 3))]
            for step in steps:  # how many are under way when it begins
                at_once = (begin[steps] <= begin[step] + 1e-12) & (end[steps] > begin[step] + 1e-9)
                assert at_once.sum() <= (servers if resource == 3 else 1)


@given(SHAPES, SEEDS)
def test_never_faster_than_a_chain_or_a_busy_resource(shape: Shape, seed: int) -> None:
    """And the steps are all the work there is."""
    parts = drawn_parts(shape, seed)
    timeline = Timeline.of(shape, parts)
    graph, seconds = timeline.graph, timeline.seconds
    assert np.isclose(seconds.sum(), parts.sum())
    longest = np.zeros(len(seconds))
    for step, (start, stop) in enumerate(zip(graph.first, graph.first[1:], strict=False)):
        longest[step] = seconds[step] + longest[graph.after[start:stop]].max(initial=0.0)
    assert timeline.delay_s >= longest.max() - 1e-9
    for resource in range(4):
        for client in {ALL, *range(shape.clients)}:
            of_one = (graph.resource == resource) & ((graph.client == client) | (resource == 3))
            assert timeline.delay_s >= seconds[of_one].sum() - 1e-9


@given(st.integers(1, 5), SEEDS)
def test_the_server_s_rule_is_near_the_best_order(clients: int, seed: int) -> None:
    """Brute force over all orders: at most the longest packet's time behind, and optimal for one client."""
    parts = drawn_parts(Shape(clients), seed)
    release = np.maximum(parts[[0, 2, 3]].sum(0), parts[1]) + parts[4]
    release, work, tail = np.maximum(release, parts[1].max()), parts[5:7].sum(0), parts[7:].sum(0)
    best = np.inf
    for order in permutations(range(clients)):
        now = delay = 0.0
        for client in order:
            now = max(now, release[client]) + work[client]
            delay = max(delay, now + tail[client])
        best = min(best, delay)
    found = Timeline.of(Shape(clients), parts).delay_s
    assert best - 1e-9 <= found <= best + work.max() + 1e-9


def test_slices_let_the_server_begin_with_what_is_there() -> None:
    """Two clients, a second for everything, a server that mixes: four slices hide three quarters of the links."""
    parts = np.ones((10, 2))
    parts[[0, 1, 2, 6, 9]] = 0.0
    delays = [Timeline.of(Shape(2, slices, slices), parts).delay_s for slices in (1, 2, 4)]
    np.testing.assert_allclose(delays, [6.0, 5.0, 4.5])


def test_graphs_are_made_once() -> None:
    assert graph_of(Shape(3)) is graph_of(Shape(3))


@given(SHAPES, SEEDS)
def test_with_barriers_a_timeline_is_the_paper_s_three_stages(shape: Shape, seed: int) -> None:
    parts = drawn_parts(shape, seed)
    found = Timeline.of(shape._replace(stages=True, slices=1, turns=min(shape.turns, 1)), parts).delay_s
    np.testing.assert_allclose(found, stages_s(shape, parts))


@given(SHAPES, SEEDS, st.integers(1, 3), st.booleans())
def test_the_critical_path_is_the_delay(shape: Shape, seed: int, servers: int, stages: bool) -> None:
    """Its steps follow each other without gaps, each after one that it needs or that kept the server busy."""
    parts = drawn_parts(shape, seed)
    timeline = Timeline.of(shape._replace(stages=stages), parts, servers)
    path = np.flatnonzero(timeline.critical)
    path = path[np.argsort(timeline.begin_s[path])]
    edges = [0.0, *timeline.end_s[path]]
    np.testing.assert_array_equal(timeline.begin_s[path], edges[:-1])
    assert edges[-1] == timeline.delay_s
    np.testing.assert_allclose(timeline.seconds[path].sum(), timeline.delay_s)
    graph = timeline.graph
    for before, step in pairwise(path):
        needed, waiting = set[int](), [int(step)]
        while waiting:
            one = waiting.pop()
            if one not in needed:
                waiting += graph.after[graph.first[one] : graph.first[one + 1]].tolist()
            needed.add(one)
        both = set(graph.resource[[before, step]].tolist())
        assert before in needed or both == {AT_SERVER}, "what comes before has nothing to do with it"


@given(SHAPES, SEEDS, st.integers(1, 3))
def test_a_trace_is_the_timeline(shape: Shape, seed: int, servers: int) -> None:
    """All steps that take time, in microseconds, none beside another on its thread; and the critical path again."""
    parts = drawn_parts(shape, seed)
    timeline = Timeline.of(shape, parts, servers, joules=parts)
    events = timeline.trace_events(process=7, start_s=2.0)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    shown = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {7}
    assert len(set(names.values())) == len(names)
    steps = [event for event in shown if names[event["tid"]] != "critical path"]
    assert len(steps) == (timeline.seconds > 0).sum()
    for key in ("dur", "joules"):
        total = sum(event[key] / 1e6 if key == "dur" else event["args"].get(key, 0.0) for event in steps)
        np.testing.assert_allclose(total, parts.sum())
    assert {event["name"] for event in steps} <= set(PARTS)
    for thread in names:
        own = sorted((event["ts"], event["ts"] + event["dur"]) for event in shown if event["tid"] == thread)
        assert all(begin >= end - 1e-3 for (_, end), (begin, _) in pairwise(own))
    for chosen in (steps, [event for event in shown if event["args"]["critical"]]):
        ends = max((event["ts"] + event["dur"] for event in chosen), default=2e6)
        np.testing.assert_allclose(ends, 1e6 * (2.0 + timeline.delay_s))

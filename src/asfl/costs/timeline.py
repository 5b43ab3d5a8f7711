"""A round as a timeline: a graph of steps on clients' processors and links and on the server, and when each happens.

The paper's round has barriers: all packets are in before the server begins, and it is done with all before a gradient
comes down. Nothing but the equations asks for that. Here a step begins when what it needs is there and its resource is
free, so the server works on the packets that have arrived and answers at once (`decision.timing = "overlap"`). What is
computed and sent is the same, so learning and energy are.

What needs what, client by client:

    layers down ─► model down ─► forward ─► activations up ─► server ─► gradients down ─► backward ─► model up

- With `radio.slices` = S the mini-batch crosses in S packets of equal size, one after the other, and so do its
  gradients. Each is decoded by itself, so what comes next may begin with it.
- Batch norm needs the whole mini-batch where it computes: a client side that has it computes before the first slice
  leaves and after the last has come back, and a server that has it waits for all slices of a client.
- A server that mixes mini-batches takes slice j of all clients together, and nothing before all have sent it.
- Layers that go up are averaged before the server computes with them.
- Local steps count as one long mini-batch, as in the paper's stages.

The server serves one step at a time (or `servers`), of those that are ready the one with the longest way to go: Jackson's
rule, optimal where work may be interrupted, and within one packet's time of the optimum where it may not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = ("layers", "model_down", "forward", "uplink", "server", "downlink", "backward", "model_up")
"""What a round does for one client, in the order of the rows of `seconds` [8, N] below."""
LAYERS, MODEL_DOWN, FORWARD, UPLINK, SERVER, DOWNLINK, BACKWARD, MODEL_UP = range(len(PARTS))
ALL = -1
"""The client of a step that the server makes for all of them."""


class Shape(NamedTuple):
    """All that decides which steps a round has; how long they take is another matter."""

    clients: int
    slices: int = 1
    turns: int = 0
    """How many steps a server makes that mixes; 0: it takes client after client."""
    whole_client: bool = True
    """Client sides need whole mini-batches."""
    whole_server: bool = True
    layers_go_up: bool = False
    local: bool = False
    """No cut: forward and backward on the client, then its model goes up."""
    in_sequence: bool = False
    joint_backward: bool = False
    """The server goes backward when it has been forward for all (EPSL)."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The steps of a round [K], each after those it needs."""

    part: Ints
    client: Ints
    share: Floats
    """Of the part's time."""
    resource: Ints
    """0: the client's processor, 1: its uplink, 2: its downlink, 3: the server."""
    first: Ints
    """[K + 1] Step k needs steps after[first[k]:first[k + 1]]."""
    after: Ints

    def seconds(self, parts: Floats) -> Floats:
        """[K] from the seconds of each part and client [8, N]."""
        of_client = parts[self.part, self.client]
        return np.asarray(self.share * np.where(self.client == ALL, parts[SERVER].sum(), of_client))


@dataclass
class _Building:
    rows: list[tuple[int, int, float, int]] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)

    def add(self, part: int, client: int, share: float, resource: int, *after: int | None) -> int:
        self.rows.append((part, client, share, resource))
        self.needs.append([step for step in after if step is not None])
        return len(self.rows) - 1

    def chain(self, part: int, client: int, count: int, resource: int, needs: Iterable[Iterable[int | None]]) -> list[int]:
        """So many equal steps one after the other; the i-th needs needs[i] besides."""
        steps: list[int] = []
        for own in needs:
            steps.append(self.add(part, client, 1 / count, resource, *steps[-1:], *own))
        return steps


@lru_cache(maxsize=256)
def graph_of(shape: Shape) -> Graph:
    """The steps of a round of this shape."""
    building, clients = _Building(), range(shape.clients)
    if shape.local:
        for n in clients:
            down = building.add(MODEL_DOWN, n, 1, 2)
            forward = building.add(FORWARD, n, 1, 0, down)
            backward = building.add(BACKWARD, n, 1, 0, forward)
            building.add(UPLINK, n, 1, 1, backward)
    elif shape.in_sequence:
        last: int | None = None
        for n in clients:
            last = _split(building, shape, [n], last)
    else:
        _split(building, shape, list(clients), None)
    part, client, share, resource = (np.array(column) for column in zip(*building.rows, strict=True))
    after = [step for needs in building.needs for step in needs]
    first = np.concatenate([[0], np.cumsum([len(needs) for needs in building.needs])])
    return Graph(part, client, share.astype(float), resource, first, np.array(after, dtype=np.int64))


def _split(building: _Building, shape: Shape, clients: list[int], begins: int | None) -> int:
    """The three stages for these clients, after step `begins`; the last step."""
    slices, up = range(shape.slices), shape.layers_go_up
    passes = 1 if shape.whole_client else shape.slices
    """How many steps a client's forward pass is."""
    computed: dict[int, int] = {}
    packets: dict[int, list[int]] = {}
    moved: list[int] = []
    for n in clients:
        layers = building.add(LAYERS, n, 1, 1 if up else 2, begins)
        moved.append(layers)
        model = building.add(MODEL_DOWN, n, 1, 2, begins, None if up else layers)
        forward = building.chain(FORWARD, n, passes, 0, [[model]] * passes)
        computed[n] = forward[-1]
        packets[n] = building.chain(
            UPLINK, n, shape.slices, 1, [[forward[min(j, passes - 1)], layers if up else None] for j in slices]
        )
    wait = moved if up else []
    served = _serve(building, shape, packets, wait)
    last = begins
    for n in clients:
        gradients = building.chain(DOWNLINK, n, shape.slices, 2, [[served[n][j]] for j in slices])
        backward = building.chain(BACKWARD, n, passes, 0, [[computed[n], gradients[j - passes]] for j in range(passes)])
        last = building.add(MODEL_UP, n, 1, 1, backward[-1])
    assert last is not None
    return last


def _serve(building: _Building, shape: Shape, packets: dict[int, list[int]], wait: list[int]) -> dict[int, list[int]]:
    """The server's steps; by client and slice, the step after which its gradient can go down."""
    slices = shape.slices
    if shape.turns:
        turns = min(shape.turns, slices)
        needs = [-(-(turn + 1) * slices // turns) - 1 for turn in range(turns)]  # the last slice that a turn uses
        steps = building.chain(SERVER, ALL, turns, 3, [[own[j] for own in packets.values()] + wait for j in needs])
        answer = [next(step for step, last in zip(steps, needs, strict=True) if last >= j) for j in range(slices)]
        return dict.fromkeys(packets, answer)
    if shape.joint_backward:
        forward = {n: building.add(SERVER, n, 1 / 3, 3, own[-1], *wait) for n, own in packets.items()}
        return {n: [building.add(SERVER, n, 2 / 3, 3, *forward.values())] * slices for n in packets}
    if shape.whole_server:
        return {n: [building.add(SERVER, n, 1, 3, own[-1], *wait)] * slices for n, own in packets.items()}
    return {n: building.chain(SERVER, n, slices, 3, [[own[j], *wait] for j in range(slices)]) for n, own in packets.items()}


def schedule(seconds: Any, resource: Any, first: Any, after: Any, servers: int) -> Any:
    """When each step begins [K]. Steps wait for what they need; those of the server besides for the server.

    Plain loops over arrays, so that the optimiser can compile it.
    """
    count = len(seconds)
    tail = np.zeros(count)
    for k in range(count - 1, -1, -1):
        for i in range(first[k], first[k + 1]):
            tail[after[i]] = max(tail[after[i]], tail[k] + seconds[k])
    begin, state = np.zeros(count), np.zeros(count, np.int8)  # 0: waits, 1: waits for the server only, 2: known
    free = np.zeros(servers)
    left = count
    start = 0
    while left > 0:
        lowest = count
        for k in range(start, count):
            if state[k] == 0:
                ready, known = 0.0, True
                for i in range(first[k], first[k + 1]):
                    if state[after[i]] != 2:
                        known = False
                        break
                    ready = max(ready, begin[after[i]] + seconds[after[i]])
                if known:
                    begin[k] = ready
                    state[k] = 1 if resource[k] == 3 else 2
                    left -= 1 if state[k] == 2 else 0
            if state[k] != 2 and lowest == count:
                lowest = k
        start = lowest
        server = 0
        for other in range(1, servers):
            server = other if free[other] < free[server] else server
        now = np.inf
        for k in range(start, count):
            if state[k] == 1:
                now = min(now, begin[k])
        now = max(now, free[server])
        best = -1
        for k in range(start, count):
            if state[k] == 1 and begin[k] <= now and (best < 0 or tail[k] > tail[best]):
                best = k
        if best >= 0:
            begin[best] = now
            free[server] = now + seconds[best]
            state[best] = 2
            left -= 1
    return begin


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each step of a round begins and how long it takes."""

    graph: Graph
    begin_s: Floats
    seconds: Floats

    @classmethod
    def of(cls, shape: Shape, parts: Floats, servers: int = 1) -> "Timeline":
        """`parts`: seconds of each part for each client, [8, N]."""
        graph = graph_of(shape)
        seconds = graph.seconds(parts)
        return cls(graph, schedule(seconds, graph.resource, graph.first, graph.after, servers), seconds)

    @property
    def end_s(self) -> Floats:
        return self.begin_s + self.seconds

    @property
    def delay_s(self) -> float:
        return float(self.end_s.max())

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
- A client with a loss of its own goes backward right after its forward pass. It waits for nothing from the server, but
  for gradients that its head is to be fitted to before its model goes up.
- Layers that go up are averaged before the server computes with them.
- Local steps count as one long mini-batch, as in the paper's stages.

The server serves one step at a time (or `servers`), of those that are ready the one with the longest way to go:
Jackson's rule, optimal where work may be interrupted, and within one packet's time of the optimum where it may not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = (
    "layers down",
    "layers up",
    "model down",
    "forward",
    "activations",
    "server",
    "server backward",
    "gradients",
    "backward",
    "model up",
)
"""What a round does for one client, in the order of the rows of `parts` [10, N] below. The server's passes are one
step, unless `Shape.joint_backward` parts them."""
DOWN, UP, MODEL_DOWN, FORWARD, SENT, SERVER, SERVER_BACKWARD, GRADIENTS, BACKWARD, MODEL_UP = range(len(PARTS))
PROCESSOR, UPLINK, DOWNLINK, AT_SERVER = range(4)
"""What a step needs while it lasts: the client's processor or one of its links, or the server."""
ALL = -1
"""The client of a step that is for all of them."""


class Shape(NamedTuple):
    """All that decides which steps a round has; how long they take is another matter."""

    clients: int
    slices: int = 1
    turns: int = 0
    """How many steps a server makes that mixes; 0: it takes client after client."""
    whole_client: bool = True
    """Client sides need whole mini-batches."""
    whole_server: bool = True
    local: bool = False
    """No cut: forward and backward on the client, then its model goes up."""
    own_loss: bool = False
    """Clients don't go backward from the server's gradients."""
    aligned: bool = False
    """These come down, even so, before client models go up."""
    in_sequence: bool = False
    joint_backward: bool = False
    """The server goes backward when it has been forward for all (EPSL)."""
    stages: bool = False
    """The paper's barriers: all have their layers before a client computes, all packets are in before the server does,
    and it is done before a gradient comes down."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The steps of a round [K], each after those it needs."""

    part: Ints
    client: Ints
    share: Floats
    """Of the part's time."""
    resource: Ints
    """`PROCESSOR`, `UPLINK`, `DOWNLINK` or `AT_SERVER`."""
    first: Ints
    """[K + 1] Step k needs steps after[first[k]:first[k + 1]]."""
    after: Ints

    @cached_property
    def arrays(self) -> tuple[Ints | Floats, ...]:
        return self.part, self.client, self.share, self.resource, self.first, self.after

    def seconds(self, parts: Floats) -> Floats:
        """[K] from the seconds of each part and client [10, N]."""
        of_client, of_all = parts[self.part, self.client], parts.sum(axis=1)[self.part]
        return np.asarray(self.share * np.where(self.client == ALL, of_all, of_client))


@dataclass
class _Building:
    rows: list[tuple[int, int, float, int]] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)

    def add(self, part: int, client: int, resource: int, after: Iterable[int], share: float = 1.0) -> int:
        self.rows.append((part, client, share, resource))
        self.needs.append(list(after))
        return len(self.rows) - 1

    def chain(self, part: int, client: int, resource: int, needs: Sequence[Iterable[int]]) -> list[int]:
        """Equal steps one after the other; the i-th needs `needs[i]` besides."""
        steps: list[int] = []
        for own in needs:
            steps.append(self.add(part, client, resource, [*steps[-1:], *own], 1 / len(needs)))
        return steps

    def barrier(self, after: Iterable[int]) -> int:
        """A step that takes no time."""
        return self.add(SERVER, ALL, AT_SERVER, after, share=0.0)


@lru_cache(maxsize=256)
def graph_of(shape: Shape) -> Graph:
    """The steps of a round of this shape."""
    building, last = _Building(), list[int]()
    if shape.local:
        for n in range(shape.clients):
            model = building.add(MODEL_DOWN, n, DOWNLINK, [])
            forward = building.add(FORWARD, n, PROCESSOR, [model])
            backward = building.add(BACKWARD, n, PROCESSOR, [forward])
            building.add(SENT, n, UPLINK, [backward])
    else:
        everyone = range(shape.clients)
        for clients in ([n] for n in everyone) if shape.in_sequence else [list(everyone)]:
            last = _split_round(building, shape, clients, last)
    part, client, share, resource = (np.array(column) for column in zip(*building.rows, strict=True))
    after = [step for needs in building.needs for step in needs]
    first = np.concatenate([[0], np.cumsum([len(needs) for needs in building.needs])])
    return Graph(part, client, share.astype(float), resource, first, np.array(after, dtype=np.int64))


def _split_round(building: _Building, shape: Shape, clients: list[int], begin: list[int]) -> list[int]:
    """The three stages for these clients after the steps in `begin`; their last steps."""
    passes = 1 if shape.whole_client else shape.slices  # of the client's network
    # Stage 1: layers move.
    down = {n: building.add(DOWN, n, DOWNLINK, begin) for n in clients}
    up = {n: building.add(UP, n, UPLINK, begin) for n in clients}
    have_layers = [building.barrier([*down.values(), *up.values()])] if shape.stages else []
    # Stage 2: forward on the clients, activations up.
    computed, packets, backward = dict[int, int](), dict[int, list[int]](), dict[int, list[int]]()
    for n in clients:
        model = building.add(MODEL_DOWN, n, DOWNLINK, [down[n], *have_layers])
        forward = building.chain(FORWARD, n, PROCESSOR, [[model]] * passes)
        computed[n] = forward[-1]
        ready = forward
        if shape.own_loss:
            backward[n] = building.chain(BACKWARD, n, PROCESSOR, [forward])
            ready = backward[n] if shape.stages else forward
        packets[n] = building.chain(
            SENT, n, UPLINK, [[ready[min(j, len(ready) - 1)], up[n]] for j in range(shape.slices)]
        )
    # Stage 3: the server, gradients down, backward on the clients, perhaps models up.
    averaged = [building.barrier([own[-1] for own in packets.values()])] if shape.stages else list(up.values())
    answers = _serve(building, shape, packets, averaged)
    if shape.stages:
        answered = [building.barrier(step for own in answers.values() for step in own)]
        answers = dict.fromkeys(clients, answered)
    last = []
    for n in clients:
        gradients = building.chain(
            GRADIENTS, n, DOWNLINK, [[answers[n][min(j, len(answers[n]) - 1)]] for j in range(shape.slices)]
        )
        if shape.own_loss:
            needs = [backward[n][-1], packets[n][-1]] + gradients[-1:] * (shape.aligned or shape.stages)
        else:
            own = [[computed[n], gradients[j - passes]] for j in range(passes)]
            needs = building.chain(BACKWARD, n, PROCESSOR, own)[-1:]
        last.append(building.add(MODEL_UP, n, UPLINK, needs))
    return last


def _serve(
    building: _Building, shape: Shape, packets: dict[int, list[int]], averaged: list[int]
) -> dict[int, list[int]]:
    """The server's steps; for each client the steps after which its slices' gradients can go down, or one for all."""
    if shape.turns:
        turns = min(shape.turns, shape.slices)
        needs = [-(-(turn + 1) * shape.slices // turns) - 1 for turn in range(turns)]  # the last slice that a turn uses
        steps = building.chain(SERVER, ALL, AT_SERVER, [[own[j] for own in packets.values()] + averaged for j in needs])
        answers = [
            next(step for step, last in zip(steps, needs, strict=True) if last >= j) for j in range(shape.slices)
        ]
        return dict.fromkeys(packets, answers)
    if shape.joint_backward:
        forward = [building.add(SERVER, n, AT_SERVER, [own[-1], *averaged]) for n, own in packets.items()]
        return {n: [building.add(SERVER_BACKWARD, n, AT_SERVER, forward)] for n in packets}
    return {
        n: building.chain(
            SERVER, n, AT_SERVER, [[packet, *averaged] for packet in (own[-1:] if shape.whole_server else own)]
        )
        for n, own in packets.items()
    }


def schedule(seconds: Any, resource: Any, first: Any, after: Any, servers: int) -> Any:
    """When each step begins [K]. Steps wait for what they need; those of the server besides for the server.

    Plain loops over arrays, compiled when the first timeline is made.
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
                    state[k] = 1 if resource[k] == AT_SERVER else 2
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


@lru_cache(maxsize=1)
def compiled_schedule() -> Any:
    from numba import njit  # takes some tenths of a second to load

    return njit(cache=True)(schedule)


@lru_cache(maxsize=1)
def _compiled_milestones() -> Any:
    from numba import njit

    schedule = compiled_schedule()

    def milestones(parts: Any, graph: Any, servers: int) -> Any:
        part, client, share, resource, first, after = graph
        found = np.zeros((parts.shape[1], 3))
        seconds = np.zeros(len(part))
        for row in range(len(found)):
            for k in range(len(part)):
                whole = parts[part[k], row, client[k]] if client[k] >= 0 else parts[part[k], row].sum()
                seconds[k] = share[k] * whole
            begin = schedule(seconds, resource, first, after, servers)
            moved = sent = end = 0.0
            for k in range(len(part)):
                finished = begin[k] + seconds[k]
                end = max(end, finished)
                if part[k] <= UP:
                    moved = max(moved, finished)
                elif part[k] == SENT:
                    sent = max(sent, finished)
            found[row] = moved, max(sent - moved, 0.0), end - max(sent, moved)
        return found

    return njit(cache=True)(milestones)


def milestones_s(shape: Shape, parts: Floats, servers: int = 1) -> Floats:
    """[C, 3] of parts [10, C, N]: until layers have moved, from then until the last packet is in, from then to the end.

    They add up to the delay.
    """
    return np.asarray(_compiled_milestones()(np.ascontiguousarray(parts), graph_of(shape).arrays, servers))


class Lane(NamedTuple):
    """What one processor or link does in a round."""

    client: int
    """`ALL`: the server."""
    resource: int
    """Of a client; of the server, which of its processors."""
    name: str
    steps: Ints
    """Those that are drawn, one after the other."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each step of a round begins and how long it takes."""

    graph: Graph
    begin_s: Floats
    seconds: Floats
    joules: Floats
    """What each step costs its client, [K]."""
    servers: int = 1

    @classmethod
    def of(cls, shape: Shape, parts: Floats, servers: int = 1, joules: Floats | None = None) -> "Timeline":
        """`parts`: seconds of each part for each client, [10, N]; `joules` likewise."""
        graph = graph_of(shape)
        seconds, spent = (graph.seconds(np.zeros(parts.shape) if one is None else one) for one in (parts, joules))
        begin = compiled_schedule()(seconds, graph.resource, graph.first, graph.after, servers)
        return cls(graph, begin, seconds, spent, servers)

    @property
    def end_s(self) -> Floats:
        return self.begin_s + self.seconds

    @property
    def delay_s(self) -> float:
        return float(self.end_s.max())

    @property
    def drawn(self) -> Bools:
        """[K] Which steps take time and end."""
        return np.asarray((self.seconds > 0) & np.isfinite(self.end_s))

    @cached_property
    def critical(self) -> Bools:
        """[K] The steps that the delay consists of: each begins when another ends, back to the beginning."""
        on_path, step = np.zeros(len(self.seconds), dtype=np.bool_), int(np.argmax(self.end_s))
        while step >= 0:
            on_path[step] = self.drawn[step]
            step = self._waited_for(step)
        return on_path

    def _waited_for(self, step: int) -> int:
        """What ended when this step began: a step that it needs, or one that kept the server busy; -1: nothing."""
        graph, begin = self.graph, self.begin_s
        before = graph.after[graph.first[step] : graph.first[step + 1]]
        if graph.resource[step] == AT_SERVER:
            others = np.flatnonzero((graph.resource == AT_SERVER) & (begin < begin[step]))
            before = np.concatenate([before, others])
        ended = before[self.end_s[before] == begin[step]]
        return int(ended[0]) if ended.size else -1

    @cached_property
    def number(self) -> Ints:
        """[K] Which step of its part and client it is, from 1: the slice, or the turn of a server that mixes."""
        seen, found = dict[tuple[int, int], int](), list[int]()
        for key in zip(self.graph.part.tolist(), self.graph.client.tolist(), strict=True):
            seen[key] = seen.get(key, 0) + (self.graph.share[len(found)] > 0)
            found.append(seen[key])
        return np.array(found)

    @cached_property
    def lanes(self) -> list[Lane]:
        """The server's processors, then processor, uplink and downlink of each client; only those that do something."""
        graph, order = self.graph, np.argsort(self.begin_s, kind="stable")
        order = order[self.drawn[order]]
        servers = list[list[int]]()
        for step in order[graph.resource[order] == AT_SERVER].tolist():
            own = next((own for own in servers if self.end_s[own[-1]] <= self.begin_s[step]), None)
            if own is None:
                servers.append(own := [])
            own.append(step)
        lanes = [
            Lane(ALL, place, f"server {place + 1}" if self.servers > 1 else "server", np.array(own))
            for place, own in enumerate(servers)
        ]
        for client in range(graph.client.max() + 1):
            for resource, name in enumerate(("processor", "uplink", "downlink")):
                steps = order[(graph.client[order] == client) & (graph.resource[order] == resource)]
                if steps.size:
                    lanes.append(Lane(client, resource, f"client {client}: {name}", steps))
        return lanes

    def trace_events(self, process: int = 0, start_s: float = 0.0) -> list[dict[str, Any]]:
        """For Perfetto and chrome://tracing: a thread for each lane, above them one that repeats the critical path."""
        graph, critical, events = self.graph, np.flatnonzero(self.critical), list[dict[str, Any]]()
        path = Lane(ALL, -1, "critical path", critical[np.argsort(self.begin_s[critical])])
        for lane in [path, *self.lanes]:
            thread = 1 + lane.resource + (0 if lane.client == ALL else self.servers + 3 * lane.client)
            where, told = {"pid": process, "tid": thread}, {"name": lane.name}
            events.append({"ph": "M", "name": "thread_name", **where, "args": told})
            events.append({"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": thread}})
            for step in lane.steps.tolist():
                begin_s, seconds, client = start_s + self.begin_s[step], self.seconds[step], int(graph.client[step])
                args: dict[str, Any] = {"part": PARTS[graph.part[step]], "client": "all" if client == ALL else client}
                args |= {"slice": int(self.number[step]), "critical": bool(self.critical[step])}
                if self.joules[step] > 0:
                    args["joules"] = float(self.joules[step])
                times = {"ts": float(1e6 * begin_s), "dur": float(1e6 * seconds)}
                events.append({"ph": "X", "name": args["part"], **times, **where, "args": args})
        return events

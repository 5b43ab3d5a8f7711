"""Which node is which client."""

from collections.abc import Mapping, Sequence

from asfl.errors import AsflError


def deal(clients: int, nodes: Sequence[int], wishes: Mapping[int, int]) -> dict[int, int]:
    """The node of each client: {client: node}.

    A node that knows which client it is (`wishes`: {node: client}) is that one. The others get the numbers that are
    left, in the order of their ids; who comes too late in this order, or is a client this run doesn't have, gets none.
    """
    seats: dict[int, int] = {}
    for node in sorted(nodes):
        wish = wishes.get(node)
        if wish is None or wish >= clients:
            continue
        if wish in seats:
            raise AsflError(f"nodes {seats[wish]} and {node} both say they are client {wish} (--node-config)")
        seats[wish] = node
    free = [client for client in range(clients) if client not in seats]
    plain = [node for node in sorted(nodes) if node not in wishes]
    if len(plain) < len(free):
        missing = ", ".join(map(str, free[len(plain) :]))
        raise AsflError(f"no node is left for client {missing}: the others say they are other clients (--node-config)")
    seats.update(zip(free, plain, strict=False))
    return dict(sorted(seats.items()))

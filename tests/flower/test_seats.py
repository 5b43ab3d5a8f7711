"""Which node is which client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asfl.errors import AsflError
from asfl.field.flower.seats import deal


def test_in_the_order_of_ids() -> None:
    assert deal(3, [30, 10, 20, 40], {}) == {0: 10, 1: 20, 2: 30}


def test_who_knows_its_number_has_it() -> None:
    assert deal(3, [10, 20, 30], {10: 2}) == {0: 20, 1: 30, 2: 10}
    assert deal(3, [10, 20, 30, 40], {40: 0}) == {0: 40, 1: 10, 2: 20}
    assert deal(2, [10, 20, 30], {10: 7}) == {0: 20, 1: 30}


@given(st.data())
def test_everybody_sits_somewhere_and_nobody_twice(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 6))
    nodes = data.draw(st.lists(st.integers(1, 2**64 - 1), min_size=clients, max_size=10, unique=True))
    knowing = data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=clients))
    numbers = data.draw(st.permutations(range(clients)))
    wishes = dict(zip(knowing, numbers, strict=False))
    seats = deal(clients, nodes, wishes)
    assert list(seats) == list(range(clients))
    assert len(set(seats.values())) == clients
    assert set(seats.values()) <= set(nodes)
    assert all(seats[wish] == node for node, wish in wishes.items())
    assert deal(clients, sorted(nodes), wishes) == seats


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({10: 1, 30: 1}, "nodes 10 and 30 both say they are client 1"),
        ({10: 5}, "no node is left for client 2"),
    ],
)
def test_what_cant_be(wishes: dict[int, int], words: str) -> None:
    with pytest.raises(AsflError, match=words):
        deal(3, [10, 20, 30], wishes)

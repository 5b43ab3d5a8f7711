from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asfl.config import Cell, ChannelSettings, Scenario
from asfl.radio.cell.walks import Walks
from asfl.radio.scenario import place_clients


def walking(**cell: Any) -> Scenario:
    return Scenario(clients=30, channel=ChannelSettings(kind="3gpp", cell=Cell(**cell)))


@given(st.floats(0, 1e5), st.just(0.0) | st.floats(0.01, 10), st.floats(1, 2000), st.integers(0, 50))
def test_nobody_leaves_the_disc_or_walks_faster_than_said(time_s: float, speed: float, walk: float, seed: int) -> None:
    scenario = walking(speed_mps=speed, walk_m=walk).model_copy(update={"seed": seed})
    walks = Walks.of(scenario)
    here, later = walks.position_m(time_s), walks.position_m(time_s + 3.0)
    assert np.hypot(*here.T).max() <= scenario.radius_m * (1 + 1e-9)
    assert (np.hypot(*(later - here).T) <= 3.0 * speed + 1e-6).all()
    assert (walks.walked_m(time_s) <= walk * (1 + 1e-9)).all()
    assert walks.position_m(0.0) == pytest.approx(place_clients(scenario).position_m)


def test_they_come_back() -> None:
    walks = Walks.of(walking(speed_mps=2.0, walk_m=40.0))
    free = walks.length_m == 40.0
    assert free.sum() > 20
    assert walks.position_m(40.0)[free] == pytest.approx(walks.start_m[free])
    assert walks.position_m(10.0)[free] == pytest.approx((walks.start_m + 20.0 * walks.heading)[free])
    assert walks.position_m(30.0)[free] == pytest.approx(walks.position_m(10.0)[free])


def test_who_stands_at_the_edge_walks_inwards() -> None:
    walks = Walks.of(walking(walk_m=100.0))
    assert (walks.length_m >= 50.0).all()

"""Links made slow on purpose."""

from pathlib import Path

import pytest

from asfl.config.errors import AsflError
from asfl.field.shaping import UNSHAPED, Pace, link_at, links_of, read_profile

PROFILE = """
[[link]]
uplink_bps = "8 Mbit/s"

[[link]]
client = 1
from_round = 5
uplink_bps = 1000
downlink_bps = "2 kbit/s"
latency_s = "10 ms"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slow.toml"
    path.write_text(PROFILE)
    return path


def test_the_latest_link_of_a_client_holds(file: Path) -> None:
    links = read_profile(file, clients=2)
    own = links_of(1, links)
    assert link_at(4, own).uplink_bps == 8e6
    assert (link_at(5, own).uplink_bps, link_at(99, own).downlink_bps) == (1e3, 2e3)
    assert link_at(99, links_of(0, links)).uplink_bps == 8e6
    assert link_at(1, ()) == UNSHAPED


def test_messages_wait_as_long_as_they_would_take(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("asfl.field.shaping.time.sleep", waited.append)
    pace = Pace(links_of(1, read_profile(file, clients=2)))
    pace.down(1000, 1)
    pace.up(1000)
    pace.down(1000, 5)
    pace.up(500)
    pace.up(0)  # of the same round
    assert waited == [8 * 1000 / 8e6, 0.005 + 4.0, 0.005 + 4.0, 0.005]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[link]]\nuplink = 3", "unknown key 'link\\[0\\].uplink': did you mean 'uplink_bps'"),
        ("[[link]]\nuplink_bps = '3 MHz'", "unit 'MHz'.*Mbit/s"),
        ("[[link]]\nuplink_bps = 0", "> 0"),
        ("[[link]]\nclient = 2", "client = 2, but there are 2: 0 … 1"),
        ("links", "not valid TOML"),
    ],
)
def test_mistakes(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(AsflError, match=f"(?s)field.shaping: .*wrong.toml.*{words}"):
        read_profile(file, clients=2)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="no such file"):
        read_profile(tmp_path / "none.toml", clients=2)

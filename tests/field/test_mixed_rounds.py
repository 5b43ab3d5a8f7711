"""A client whose activations make no finite loss spoils a mixed mini-batch for all: the round is made without it."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from small_runs import EVERYBODY_ARRIVES, PATIENT, agreement_of, local_links, planned_simulation, tiny
from test_bad_answers import lost_packet

from asfl.field.fleet import RemoteFleet
from asfl.field.protocol.messages import Agreement
from asfl.runs.records import RoundRecord
from asfl.runs.state import flatten
from asfl.train.fleet import Packet
from asfl.train.trainer import Task

VICTIM, WHEN = 2, 1
CUTS = [4, 2, 5, 3]


class Spoilt(RemoteFleet):
    """In one step, what the victim sends is finite, but nothing finite comes of it; or it is lost there."""

    step = 0
    lost = False

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        packets = super().forward(tasks)
        if (tasks[0].round, tasks[0].step) == (WHEN, self.step):
            place = [task.client for task in tasks].index(VICTIM)
            packet = packets[place]
            assert packet is not None
            if self.lost:
                self._roster.lose(VICTIM, "forward", "the connection broke", lied=False)
                packets[place] = None
            else:
                huge = tuple(torch.full_like(one, 3e38) for one in packet.carry if isinstance(one, torch.Tensor))
                packets[place] = Packet(huge, packet.labels)
        return packets


Model = dict[str, torch.Tensor]


def agreement_for(scheme: str, *overrides: str) -> Agreement:
    """SGD: a client whose side the server knows then comes back as if only its packet had been lost."""
    sgd = ("training.optimizer=sgd", "training.learning_rate=0.05")
    return agreement_of(tiny(*EVERYBODY_ARRIVES, *sgd, *overrides, rounds=4), scheme)


def played(agreement: Agreement, *, step: int = 0, lost: bool = False) -> tuple[list[RoundRecord], Model, Model]:
    """Records, the average model, and all that the server itself has."""
    with local_links(agreement) as links:
        there = planned_simulation(agreement, CUTS, partial(Spoilt, links, PATIENT, None))
        fleet = there.trainer.fleet
        assert isinstance(fleet, Spoilt)
        fleet.step, fleet.lost = step, lost
        records = [there.play_round() for _ in CUTS]
        tensors = flatten(there.trainer.state)
        return records, there.average_model(), {name: tensors[name] for name in tensors if name.startswith("server")}


def assert_same(found: Model, expected: Model) -> None:
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("scheme", ["asfl:mix=on", "sfl-best:mix=on"])
def test_as_if_its_packet_had_been_lost(scheme: str, norm: str) -> None:
    """To the bit, and only the one who sent them is refused, though nobody's loss was finite in the mix."""
    agreement = agreement_for(scheme, f"model.norm={norm}")
    here = planned_simulation(agreement, CUTS)
    with lost_packet(VICTIM, WHEN):
        expected = [here.play_round() for _ in CUTS]
    found, model, server = played(agreement)
    for one, other in zip(found, expected, strict=True):
        assert (one.arrived, one.cut, one.train_loss) == (other.arrived, other.cut, other.train_loss)
        assert (one.accuracy, one.test_loss) == (other.accuracy, other.test_loss)
    assert_same(model, here.average_model())
    assert_same(server, {name: flatten(here.trainer.state)[name] for name in server})
    assert [record.faults is None for record in found] == [True, False, True, True]
    (fault,) = found[WHEN].faults or []
    assert (fault["client"], fault["stage"]) == (VICTIM, "forward")
    assert fault["reason"] == "the server's pass gives a loss of nan"


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("scheme", ["asfl:mix=on", "sfl-best:mix=on"])
def test_only_the_steps_that_it_spoilt_are_made_again(scheme: str, step: int) -> None:
    """Adam, two local steps: as if it had been lost in that one; what the server learnt in the one before stays."""
    agreement = agreement_for(
        scheme, "training.optimizer=adam", "training.learning_rate=2e-3", "training.local_steps=2"
    )
    found, model, server = played(agreement, step=step)
    expected, other_model, other_server = played(agreement, step=step, lost=True)
    assert [record.train_loss for record in found] == [record.train_loss for record in expected]
    assert [record.arrived for record in found] == [record.arrived for record in expected]
    assert [len(record.faults or []) for record in found] == [0, 1, 0, 0]
    assert_same(model, other_model)
    assert_same(server, other_server)

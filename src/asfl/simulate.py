"""The loop: channel, decide, train, account, evaluate, record; round after round, one scheme in one world."""

from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.air import AiredRound, AirState, air_round, rules_of
from asfl.budgets import Budgets, resolve_budgets
from asfl.config import Config
from asfl.data import ImageData, partition
from asfl.errors import AsflError
from asfl.models import build_model
from asfl.optimize import Queues
from asfl.profile import ModelProfile
from asfl.records import RoundRecord
from asfl.scenario import random_stream
from asfl.schemes import Scheme
from asfl.stand_in import StandIn
from asfl.train.batches import Batches
from asfl.train.device import device_named
from asfl.train.evaluate import Evaluator
from asfl.train.fast import FastTrainer
from asfl.train.fleet import Fault, FleetMaker, LocalFleet
from asfl.train.layout import ModelVectors
from asfl.train.optimizers import rule_named
from asfl.train.signals import Signals, sample_coordinates
from asfl.train.trainer import RoundPlan, Trained
from asfl.units import BITS_PER_VALUE
from asfl.world import World

Bools = NDArray[np.bool_]

MERGED_ACTIVATIONS = 1 << 24
"""On a CPU, clients share a server pass as long as their activations there stay below this many values in total."""
SHADOW_DIVERGENCE = 1.0
"""FedAvg, SL and SFL take blocks and powers from ASFL, whose client sides drift apart; theirs don't. So they carry a
shadow of that drift. Measured on ASFL's first rounds, updates of different clients are about orthogonal: 1."""


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of the average model, and the mean over clients of [own client side; server side]."""

    accuracy: float
    loss: float
    client_accuracy: float


class Simulation:
    """One scheme being trained; `play_round` is the whole algorithm."""

    def __init__(
        self,
        config: Config,
        scheme: Scheme,
        data: ImageData,
        budgets: Budgets | None = None,
        fleet: FleetMaker = LocalFleet,
        world: World | None = None,
    ) -> None:
        """`fleet` makes the clients: in this process, or elsewhere (`asfl.field`); then `world` may be measured."""
        self.config, self.scheme = config, scheme
        self.world = world or World.of(config)
        self.budgets = budgets or resolve_budgets(self.world)
        self.rules = rules_of(config, self.budgets)
        clients, seed, training = config.scenario.clients, config.scenario.seed, config.training
        self.device = device_named(training.device)
        self.parts = partition(data.train_labels, clients, config.data.dirichlet_alpha, seed)
        batches = Batches.of(data, self.parts, config, self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random_stream(seed, "initial weights").integers(2**62)))
            model = build_model(config.model_spec)
        self.trainer = FastTrainer(
            model,
            batches,
            scheme.procedure,
            rule_named(training.optimizer, training.learning_rate),
            num_clients=clients,
            seed=seed,
            device=self.device,
            merge=clients
            if self.device.type == "cuda"
            else clients_a_pass(self.world.profile, training.batch_size, clients),
            fleet=fleet,
        )
        self._evaluator = Evaluator(model, self.trainer.layout, data, self.device, torch.float32)
        order = random_stream(seed, "test images").permutation(self._evaluator.num_samples)
        on_the_way = config.output.test_samples or self._evaluator.num_samples
        self._test_samples = np.sort(order[:on_the_way])

        self.round_index = 0
        """Of the next round, counted from 0."""
        self.air = AirState.fresh(clients)
        self.signals = Signals.none_yet(clients)
        self.shadow = StandIn.fresh(self.world.profile, clients, divergence=SHADOW_DIVERGENCE)
        """How far client sides would have drifted apart under ASFL, for schemes that borrow from it."""
        self.total_delay_s, self.total_energy_j = 0.0, 0.0

    @property
    def finished(self) -> bool:
        return self.round_index >= self.config.training.rounds

    def play_round(self) -> RoundRecord:
        index, fleet = self.round_index, self.trainer.fleet
        ready = fleet.begin(index)
        # 1. What the server knows of the learning.
        learning = self.signals.learning(
            fleet,
            self._reported_coordinates(),
            self.config.decision.discrepancy_sample_ratio,
            norms=self.rules.reading == "printed",
        )
        if not self.scheme.procedure.keeps_client_sides:
            learning = replace(learning, layer_spread=self.shadow.layer_spread * learning.update_scale)
        # 2. Channel, decision, arrivals, costs, queues.
        aired = air_round(self.world, self.scheme, self.rules, learning, self.air, index)
        # 3. Train: layers move, activations and gradients cross the cut, models step and are averaged.
        self.world.training_begins()
        trained = self.trainer.round(self._plan(aired, ready))
        aired = self.world.settle(aired, self.scheme)
        faults = fleet.take_faults()
        lost = _lost(ready, faults) & np.isnan(trained.loss)
        arrived = aired.arrived & ~lost
        self._check(trained, arrived)
        # 4. Account.
        self.air, self.signals = self._air_after(aired, lost), self.signals.after(trained)
        if np.ndim(aired.reference.cut) == 0:
            self.shadow = self.shadow.after(int(aired.reference.cut), aired.reference_arrived)
        self.total_delay_s += float(aired.cost.delay_s)
        self.total_energy_j += float(aired.cost.energy_j.sum())
        # 5. Evaluate.
        self.round_index += 1
        due = self.round_index % self.config.output.evaluate_every == 0 or self.finished
        evaluation = self.evaluate() if due else None
        # 6. Record.
        return self._record(aired, arrived, trained, evaluation, faults + fleet.take_faults())

    def evaluate(self) -> Evaluation:
        """On the configured number of test images; after the last round on all of them."""
        self.trainer.fleet.gather()
        state = self.trainer.state
        samples = None if self.finished else self._test_samples
        average = self._evaluator.score(state.average_model(), samples)
        if state.cut == 0:  # everybody has the average model
            return Evaluation(average.accuracy, average.loss, average.accuracy)
        # Every client on a share of the images of its own: together one pass over the test set, and unbiased.
        shares = np.array_split(
            random_stream(self.config.scenario.seed, "test shares").permutation(self._test_samples), state.num_clients
        )
        own = [
            self._evaluator.score(state.client_model(client), share).accuracy
            for client, share in enumerate(shares)
            if share.size
        ]
        return Evaluation(average.accuracy, average.loss, float(np.mean(own)))

    def average_model(self) -> dict[str, Tensor]:
        """The trained model, as a `state_dict`."""
        self.trainer.fleet.gather()
        average: ModelVectors = self.trainer.state.average_model()
        return self.trainer.layout.state_dict(average)

    # ------------------------------------------------------------------ pieces
    def _reported_coordinates(self) -> NDArray[np.int64]:
        random = random_stream(self.config.scenario.seed, "reported coordinates", self.round_index)
        size = int(self.trainer.layout.parameter_edges[self.trainer.state.cut])
        return sample_coordinates(size, self.config.decision.discrepancy_sample_ratio, random)

    def _plan(self, aired: AiredRound, ready: Bools) -> RoundPlan:
        cut = self.trainer.layout.num_units if self.scheme.procedure.full_local_model else aired.decision.cut
        everybodys = np.broadcast_to(cut, self.config.scenario.clients)
        return RoundPlan(aired.round.index, everybodys, aired.decision.scheduled & ready, aired.arrived & ready)

    def _air_after(self, aired: AiredRound, lost: Bools) -> AirState:
        """The next round re-splits from the cut that is; without those who were lost it may not have moved."""
        if lost.any() and self.scheme.procedure.keeps_client_sides and aired.state.previous_cut is not None:
            return replace(aired.state, previous_cut=self.trainer.state.cut or None)
        return aired.state

    def _check(self, trained: Trained, arrived: Bools) -> None:
        broken = np.flatnonzero(arrived & ~(np.isfinite(trained.loss) & np.isfinite(trained.update_norm2)))
        if broken.size:
            raise AsflError(
                f"round {self.round_index + 1}: training has diverged, client {broken[0]} has a loss of "
                f"{trained.loss[broken[0]]:g} and an update of norm {np.sqrt(trained.update_norm2[broken[0]]):g} "
                f"(training.learning_rate = {self.config.training.learning_rate:g} may be too high)"
            )

    def _record(
        self, aired: AiredRound, arrived: Bools, trained: Trained, evaluation: Evaluation | None, faults: list[Fault]
    ) -> RoundRecord:
        decision, cost, queues = aired.decision, aired.cost, aired.state.queues
        problem = aired.problem
        keeps = self.scheme.procedure.keeps_client_sides
        spread = float(problem.spread_of_cut[int(np.min(decision.cut))]) if keeps else 0.0
        if problem.rules.reading == "corrected":  # there it is in updates already
            spread *= problem.learning.update_scale
        lost = float((cost.packet_error_rate * problem.learning.update_norm2).mean())
        arrived_losses = trained.loss[arrived]
        return RoundRecord(
            round=self.round_index,
            cut=None
            if self.scheme.procedure.full_local_model
            else int(decision.cut)
            if np.ndim(decision.cut) == 0
            else np.asarray(decision.cut).tolist(),
            rb_count=decision.rb_count.tolist(),
            tx_power_w=decision.tx_power_w.tolist(),
            packet_error_rate=cost.packet_error_rate.tolist(),
            arrived=arrived.astype(int).tolist(),
            delay_s=float(cost.delay_s),
            resplit_delay_s=float(cost.resplit_delay_s),
            uplink_stage_delay_s=float(cost.uplink_stage_delay_s),
            server_stage_delay_s=float(cost.server_stage_delay_s),
            energy_j=cost.energy_j.tolist(),
            resplit_energy_j=cost.resplit_energy_j.tolist(),
            total_delay_s=self.total_delay_s,
            total_energy_j=self.total_energy_j,
            delay_queue=float(queues.delay),
            energy_queue=queues.energy.tolist(),
            participation_queue=queues.participation.tolist(),
            train_loss=float(arrived_losses.mean()) if arrived_losses.size else None,
            update_norm2=[None if np.isnan(norm) else norm for norm in trained.update_norm2.tolist()],
            update_scale=self.signals.update_scale,
            spread=spread,
            discrepancy=(spread + lost) / problem.learning.update_scale,
            resplit_shift=trained.resplit_shift,
            accuracy=evaluation.accuracy if evaluation else None,
            test_loss=evaluation.loss if evaluation else None,
            client_accuracy=evaluation.client_accuracy if evaluation else None,
            faults=[{**asdict(fault), "round": fault.round + 1} for fault in faults] or None,
            measured=self.world.facts(),
        )

    # ------------------------------------------------------------------ to and from a checkpoint
    def tensors(self, *, whole: bool = True) -> dict[str, Tensor]:
        """Everything a resumed run needs besides the configuration.

        Not `whole`: real clients aren't asked for their sides, and have to bring them along when the run goes on.
        """
        if whole:
            self.trainer.fleet.gather(optimizers=True)
        queues = self.air.queues
        cut = -1 if self.air.previous_cut is None else self.air.previous_cut
        return {
            **{f"training.{name}": tensor for name, tensor in self.trainer.state.tensors().items()},
            **{f"fleet.{name}": torch.from_numpy(array) for name, array in self.trainer.fleet.knowledge().items()},
            **{f"world.{name}": torch.from_numpy(array) for name, array in self.world.arrays().items()},
            "round_index": torch.tensor(self.round_index),
            "previous_cut": torch.tensor(cut),
            "queues.delay": torch.tensor(queues.delay, dtype=torch.float64),
            "queues.energy": torch.from_numpy(queues.energy),
            "queues.participation": torch.from_numpy(queues.participation),
            "shadow.layer_spread": torch.from_numpy(self.shadow.layer_spread),
            "signals.update_norm2": torch.from_numpy(self.signals.update_norm2),
            "signals.update_scale": torch.tensor(self.signals.update_scale, dtype=torch.float64),
            "total_delay_s": torch.tensor(self.total_delay_s, dtype=torch.float64),
            "total_energy_j": torch.tensor(self.total_energy_j, dtype=torch.float64),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.trainer.state.restore(_below("training.", tensors))
        self.world.restore({name: tensor.numpy() for name, tensor in _below("world.", tensors).items()})
        self.trainer.fleet.scatter({name: tensor.numpy() for name, tensor in _below("fleet.", tensors).items()})
        queues = Queues(
            tensors["queues.delay"].item(), tensors["queues.energy"].numpy(), tensors["queues.participation"].numpy()
        )
        cut = int(tensors["previous_cut"])
        self.air = AirState(queues, None if cut < 0 else cut)
        self.signals = Signals(tensors["signals.update_norm2"].numpy(), tensors["signals.update_scale"].item())
        self.shadow = replace(self.shadow, layer_spread=tensors["shadow.layer_spread"].numpy())
        self.total_delay_s, self.total_energy_j = tensors["total_delay_s"].item(), tensors["total_energy_j"].item()
        self.round_index = int(tensors["round_index"])


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _lost(ready: Bools, faults: list[Fault]) -> Bools:
    """[N] who wasn't there when the round began, or has a fault since."""
    lost = ~ready
    lost[[fault.client for fault in faults]] = True
    return lost


def clients_a_pass(profile: ModelProfile, batch_size: int, num_clients: int) -> int:
    """How many clients share a server pass on a CPU: many if the network is small, else one by one."""
    values = float(profile.activation_bits.sum()) / BITS_PER_VALUE * batch_size
    return int(np.clip(MERGED_ACTIVATIONS // max(values, 1.0), 1, num_clients))

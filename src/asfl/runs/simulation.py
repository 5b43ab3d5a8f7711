"""The loop: channel, decide, train, account, evaluate, record; round after round, one scheme in one world.

Weights are changed in place, by the trainer. Everything else that a round leaves behind is a `LoopState`: one goes
into a round, the next comes out.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.account import ModelledAccountant
from asfl.costs.budgets import Budgets
from asfl.costs.decision import Decision
from asfl.costs.modelled import ASFL
from asfl.costs.reserves import Reserves
from asfl.costs.world import World
from asfl.data import ImageData, deal
from asfl.models.build import build_model
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.optimize import Learning
from asfl.runs.initial import start_from
from asfl.runs.loop_state import LoopState, arrays_of, below, named, tensors_of
from asfl.runs.records import DIVERGED, RoundRecord
from asfl.runs.scoring import Evaluation, scoring_of
from asfl.runs.synthetic_learning import Drift, SyntheticLearning
from asfl.schemes import Scheme
from asfl.schemes.base import switches_of, watches_noise
from asfl.schemes.rounds import (
    AccountedRound,
    DecidedRound,
    RadioState,
    account_round,
    budgets_of,
    decide_round,
    rules_of,
)
from asfl.train.batches import Batches
from asfl.train.beyond import DriftAndNoiseSignals
from asfl.train.combine import Combining
from asfl.train.device import device_named
from asfl.train.fast import FastTrainer
from asfl.train.fleet import Fault, FleetMaker, LocalFleet
from asfl.train.gradients import Gradients, is_due
from asfl.train.mixed import client_learning_rate
from asfl.train.optimizers import rule_named
from asfl.train.privacy import GaussianMechanism, drawn_from, epsilon
from asfl.train.reports import sample_coordinates
from asfl.train.signals import Signals
from asfl.train.trainer import RoundPlan, Trained

Bools = NDArray[np.bool_]

MERGED_ACTIVATIONS = 1 << 24
"""On a CPU, clients share a server pass as long as their activations there stay below this many values in total."""
BORROWED_DRIFT = Drift(divergence=17.0, exponent=1.0)
"""FedAvg, SL and SFL take blocks and powers from ASFL, whose client sides drift apart; theirs don't. So they assume
that drift. Updates of different clients are about orthogonal, which would be 1; but those of one client point the same
way for many rounds, and their sum grows faster than their number. Fitted with the default `drift_weight`: in the demo,
mean error rates and powers are then ASFL's within 5 %, for FedAvg and SFL (3 seeds, 60 rounds)."""


class Simulation:
    """One scheme being trained; `_round` is the whole algorithm."""

    def __init__(
        self,
        config: Config,
        scheme: Scheme,
        data: ImageData,
        budgets: Budgets | None = None,
        fleet: FleetMaker = LocalFleet,
        world: World | None = None,
        recorded: Sequence[Decision] = (),
        *,
        begins: bool = True,
    ) -> None:
        """`fleet` makes the clients: in this process, or elsewhere (`asfl.field`); then `world` may be measured.

        `recorded`: what ASFL decided round by round in this world, for schemes that borrow from it. Not `begins`: its
        weights come from a checkpoint, so nothing is trained before round 1.
        """
        self.config, self.scheme = config, scheme
        self.world = world or World.of(config)
        self.budgets = budgets or budgets_of(self.world, scheme)
        self._recorded = recorded
        self.switches = switches_of(scheme)
        self.rules = rules_of(config, self.budgets, self.switches)
        clients, seed, training = config.scenario.clients, config.scenario.seed, config.training
        self.device = device_named(training.device)
        check_protection(config, scheme)
        if fleet is LocalFleet and config.privacy.noisy:
            fleet = partial(LocalFleet, blur=GaussianMechanism(config.privacy, drawn_from(seed)))
        parts: Sequence[NDArray[np.int64]] = [np.zeros(0, np.int64)] * clients
        self._samples_each = np.full(clients, len(data.train_labels) // clients)
        if not config.data.private:  # else nobody knows who has what
            parts = deal(data, config)
        batches = clients_batches = Batches.of(data, parts, config, self.device)
        if scheme.exchange.central:  # one "client" that has all the data, and takes everybody's steps
            steps = training.local_steps * min(clients, config.radio.num_rbs)
            batches = Batches.of(data, [np.concatenate(parts)], config, self.device, local_steps=steps)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random_stream(seed, "initial weights").integers(2**62)))
            model = build_model(config.model_spec, config.training.precision)
        if begins:
            start_from(model, config, data, parts, self.device)
        self.trainer = FastTrainer(
            model,
            batches,
            scheme.exchange,
            rule_named(training.optimizer, training.learning_rate),
            num_clients=1 if scheme.exchange.central else clients,
            seed=seed,
            device=self.device,
            merge=clients
            if self.device.type == "cuda"
            else clients_a_pass(load_profile(config.model_spec), training.batch_size, clients),
            fleet=fleet,
            client_rule=rule_named(training.optimizer, client_learning_rate(config, scheme.exchange)),
            watch_noise=self.switches.rate or self.switches.quant or watches_noise(scheme),
            combining=Combining(config.robust.average, clip=config.robust.clip),
        )
        covered = scheme.exchange == ASFL and training.local_steps == 1 and not config.data.private
        self._gradients = Gradients(model, self.trainer.layout, clients_batches, self.trainer.rule) if covered else None
        self._scoring = scoring_of(config, model, data, clients_batches, self.trainer.fleet, self.device)
        self.accountant = self.world.accountant()
        self.state = LoopState(
            round_index=0,
            radio=RadioState.fresh(clients, Reserves.of(config)),
            signals=Signals.none_yet(clients),
            assumed_drift=SyntheticLearning.fresh(self.world.profile, clients, BORROWED_DRIFT),
            beyond=DriftAndNoiseSignals.none_yet(self.world.profile.num_layers)
            if self.switches.any or watches_noise(scheme)
            else None,
            took_part=np.zeros(clients, dtype=np.int64) if config.privacy.noisy else None,
        )

    @property
    def round_index(self) -> int:
        """Of the next round, counted from 0."""
        return self.state.round_index

    @property
    def finished(self) -> bool:
        return self._is_last(self.state)

    def play_round(self) -> RoundRecord:
        self.state, record = self._round(self.state)
        return record

    def _round(self, state: LoopState) -> tuple[LoopState, RoundRecord]:
        fleet, seed = self.trainer.fleet, self.config.scenario.seed
        # 1. Channel: who is there, over which links.
        ready = fleet.begin(state.round_index)
        round_ = self.world.begin_round(state.round_index, state.radio.previous_cut, state.total_delay_s)
        # 2. Decide, by what the server knows of the learning.
        recorded = self._recorded_in(state.round_index)
        learning = self._learning(state)
        assumed = replace(learning, layer_spread=state.assumed_drift.layer_spread * learning.update_scale)
        decided = decide_round(
            round_, self.scheme, self.rules, learning, state.radio, seed, self.budgets, recorded, assumed
        )
        # 3. Train: layers move, activations and gradients cross the cut, models step and are averaged.
        self.accountant.training_begins()
        trained = self.trainer.round(self._plan(decided, ready))
        if self.scheme.exchange.central:  # of one model: the same for all
            everybody = self.config.scenario.clients
            of_one = trained.loss, trained.update_norm2, trained.quantisation_error
            loss, norm2, error = (own.repeat(everybody) for own in of_one)
            trained = Trained(loss, norm2, error)
        # 4. Account: delay, energy, queues.
        accounted = account_round(decided, self.accountant, self._modelled, state.radio, seed)
        faults = fleet.take_faults()
        lost = _lost(ready, faults) & np.isnan(trained.loss)
        arrived = decided.arrived & ~lost
        self._check(trained, arrived)
        state = self._state_after(state, decided, accounted, trained, lost, decided.arrived & ready)
        # 5. Evaluate.
        due = state.round_index % self.config.output.evaluate_every == 0 or self._is_last(state)
        evaluation = self.evaluate(whole=self._is_last(state)) if due else None
        gradient = self._gradient(state, arrived)
        # 6. Record.
        faults += fleet.take_faults()
        record = self._record(state, decided, accounted, arrived, trained, evaluation, faults)
        return state, replace(record, gradient=gradient)

    def evaluate(self, *, whole: bool) -> Evaluation | None:
        """On all test images, or on the configured number of them."""
        self.trainer.fleet.gather()
        return self._scoring.evaluate(self.trainer.state, whole=whole)

    def average_model(self) -> dict[str, Tensor]:
        """The trained model as it is scored, as a `state_dict`."""
        self.trainer.fleet.gather()
        return self.trainer.layout.state_dict(self._scoring.calibrated(self.trainer.state.average_model()))

    # ------------------------------------------------------------------ pieces
    def _recorded_in(self, round_index: int) -> Decision | None:
        """What ASFL decided in this round, unless the clock moves the links: its round was at another time."""
        return self._recorded[round_index] if round_index < len(self._recorded) and not self.world.has_clock else None

    def _is_last(self, state: LoopState) -> bool:
        reserves = state.radio.reserves
        return state.round_index >= self.config.training.rounds or (reserves is not None and reserves.used_up)

    @property
    def _modelled(self) -> ModelledAccountant:
        return ModelledAccountant(self.config.decision.charge)

    def _learning(self, state: LoopState) -> Learning:
        """What the server knows of the models: spreads by layer from the clients' reports, update norms."""
        if self.scheme.exchange.central:
            return state.assumed_drift.learning()
        ratio, reported = self.config.decision.discrepancy_sample_ratio, None
        if ratio == "auto":
            ratio = 1.0
        else:
            random = random_stream(self.config.scenario.seed, "reported coordinates", state.round_index)
            size = int(self.trainer.layout.parameter_edges[self.trainer.state.cut])
            reported = sample_coordinates(size, ratio, random)
        learning = state.signals.learning(self.trainer.fleet, reported, ratio, norms=self.rules.equations == "printed")
        if state.beyond is not None:
            beyond = state.beyond.seen(learning.layer_spread).learning(learning.layer_spread)
            learning = replace(learning, beyond=beyond)
        if self.scheme.exchange.keeps_client_sides:
            return learning
        return replace(learning, layer_spread=state.assumed_drift.layer_spread * learning.update_scale)

    def _plan(self, decided: DecidedRound, ready: Bools) -> RoundPlan:
        if self.scheme.exchange.central:
            everybody = np.ones(1, dtype=np.bool_)
            return RoundPlan(decided.round.index, np.array([self.trainer.layout.num_units]), everybody, everybody)
        cut = self.trainer.layout.num_units if self.scheme.exchange.full_local_model else decided.decision.cut
        everybodys = np.broadcast_to(cut, self.config.scenario.clients)
        return RoundPlan(
            decided.round.index,
            everybodys,
            decided.decision.scheduled & ready,
            decided.arrived & ready,
            synced=decided.decision.synced,
            bits=np.broadcast_to(decided.decision.bits, self.config.scenario.clients),
            batch=decided.decision.batch,
        )

    def _state_after(
        self,
        state: LoopState,
        decided: DecidedRound,
        accounted: AccountedRound,
        trained: Trained,
        lost: Bools,
        asked: Bools,
    ) -> LoopState:
        radio, drift, answering = accounted.state, state.assumed_drift, accounted.answering
        if lost.any() and self.scheme.exchange.keeps_client_sides and radio.previous_cut is not None:
            # The next round re-splits from the cut that is; without those who were lost it may not have moved.
            radio = replace(radio, previous_cut=self.trainer.state.cut or None)
        if np.ndim(answering.cut) == 0:
            drift = drift.after(int(answering.cut), accounted.answering_arrived)
        beyond, known = state.beyond, decided.problem.learning
        if beyond is not None and known.beyond is not None:
            clients = self.config.scenario.clients
            beyond = beyond.seen(known.layer_spread).after(decided.decision, trained, known.beyond.layer_drift, clients)
        return LoopState(
            round_index=state.round_index + 1,
            radio=radio,
            signals=state.signals.after(trained),
            assumed_drift=drift,
            beyond=beyond,
            took_part=None if state.took_part is None else state.took_part + asked,
            total_delay_s=state.total_delay_s + float(accounted.charge.delay_s),
            total_energy_j=state.total_energy_j + float(accounted.charge.energy_j.sum()),
        )

    def _check(self, trained: Trained, arrived: Bools) -> None:
        broken = np.flatnonzero(arrived & ~(np.isfinite(trained.loss) & np.isfinite(trained.update_norm2)))
        if broken.size:
            raise AsflError(
                f"round {self.round_index + 1}: {DIVERGED}, client {broken[0]} has a loss of "
                f"{trained.loss[broken[0]]:g} and an update of norm {np.sqrt(trained.update_norm2[broken[0]]):g} "
                f"(training.learning_rate = {self.config.training.learning_rate:g} may be too high)"
            )

    def _gradient(self, state: LoopState, arrived: Bools) -> dict[str, float] | None:
        """What Theorem 1 speaks of, in rounds that don't depend on how many there are to be."""
        if self._gradients is None or not is_due(state.round_index, self.config.output.evaluate_every):
            return None
        self.trainer.fleet.gather(optimizers=self.trainer.rule.num_moments > 0)
        return self._gradients.measure(self.trainer.state, arrived, state.round_index)

    def _record(
        self,
        state: LoopState,
        decided: DecidedRound,
        accounted: AccountedRound,
        arrived: Bools,
        trained: Trained,
        evaluation: Evaluation | None,
        faults: list[Fault],
    ) -> RoundRecord:
        decision, cost, queues = decided.decision, accounted.charge, accounted.state.queues
        problem = decided.problem
        keeps = self.scheme.exchange.keeps_client_sides
        spread = float(problem.spread_of_cut[int(np.min(decision.cut))]) if keeps else 0.0
        if problem.rules.equations == "corrected":  # there it is in updates already
            spread *= problem.learning.update_scale
        lost = float((cost.packet_error_rate * problem.learning.update_norm2).mean())
        arrived_losses = trained.loss if self.scheme.exchange.central else trained.loss[arrived]
        return RoundRecord(
            round=state.round_index,
            cut=None
            if self.scheme.exchange.full_local_model
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
            total_delay_s=state.total_delay_s,
            total_energy_j=state.total_energy_j,
            delay_queue=float(queues.delay),
            energy_queue=queues.energy.tolist(),
            participation_queue=queues.participation.tolist(),
            train_loss=float(arrived_losses.mean()) if arrived_losses.size else None,
            update_norm2=[None if np.isnan(norm) else norm for norm in trained.update_norm2.tolist()],
            update_scale=state.signals.update_scale,
            spread=spread,
            discrepancy=(spread + lost) / problem.learning.update_scale,
            resplit_shift=trained.resplit_shift,
            accuracy=evaluation.accuracy if evaluation else None,
            test_loss=evaluation.loss if evaluation else None,
            client_accuracy=evaluation.client_accuracy if evaluation else None,
            uncalibrated_accuracy=evaluation.uncalibrated_accuracy if evaluation else None,
            device_accuracy=list(evaluation.by_client) or None if evaluation else None,
            rb_owner=None if self.scheme.exchange.in_sequence else decision.rb_owner,
            **self._beyond_record(decided),
            **({} if state.radio.reserves is None else state.radio.reserves.record()),
            epsilon=self._epsilon(state, epochs=decision.batch is None),
            faults=[
                {"client": one.client, "round": one.round + 1, "stage": one.stage, "reason": one.reason}
                for one in faults
            ]
            or None,
            measured=self.accountant.facts(),
        )

    def _epsilon(self, state: LoopState, *, epochs: bool) -> float | None:
        """Of the client that has revealed most so far; without `epochs`, any sample may be in any mini-batch."""
        if state.took_part is None:
            return None
        training, samples = self.config.training, self.trainer.state.samples
        steps = state.took_part * training.local_steps
        # A sample crosses once in an epoch, and epochs go on while a client sits out.
        epoch = np.maximum((samples if self.config.data.uneven else self._samples_each) // training.batch_size, 1)
        crossed = np.minimum(steps, np.ceil(state.round_index * training.local_steps / epoch)) if epochs else steps
        return epsilon(self.config.privacy, int(crossed.max()))

    def _beyond_record(self, decided: DecidedRound) -> dict[str, Any]:
        decision, beyond = decided.decision, decided.problem.learning.beyond
        bits = np.broadcast_to(decision.bits, self.config.scenario.clients)
        out: dict[str, Any] = {"bits": bits.tolist()} if self.switches.any or bits.min() < BITS_PER_VALUE else {}
        if beyond is not None:
            out["noise_scale"] = beyond.noise_scale
        if beyond is not None and self.scheme.exchange.keeps_client_sides:
            out["synced"] = decision.synced
        if decision.batch is not None:
            out["batch"] = decision.batch.tolist()
        return out

    # ------------------------------------------------------------------ to and from a checkpoint
    def tensors(self, *, whole: bool = True) -> dict[str, Tensor]:
        """Everything a resumed run needs besides the configuration.

        Not `whole`: real clients aren't asked for their sides, and have to bring them along when the run goes on.
        """
        if whole:
            self.trainer.fleet.gather(optimizers=True)
        return {
            **named("training.", self.trainer.state.tensors()),
            **named("fleet.", tensors_of(self.trainer.fleet.knowledge())),
            **named("accountant.", tensors_of(self.accountant.arrays())),
            **self.state.tensors(),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.trainer.state.restore(below("training.", tensors))
        self.accountant.restore(arrays_of(below("accountant.", tensors)))
        self.trainer.fleet.scatter(arrays_of(below("fleet.", tensors)))
        self.state = self.state.restored(tensors)


def _lost(ready: Bools, faults: list[Fault]) -> Bools:
    """[N] who wasn't there when the round began, or has a fault since."""
    lost = ~ready
    lost[[fault.client for fault in faults]] = True
    return lost


def check_protection(config: Config, scheme: Scheme) -> None:
    """Refuse settings that a scheme's rounds can't keep."""
    exchange = scheme.exchange
    if config.privacy.noisy and (exchange.full_local_model or exchange.central):
        raise AsflError(f"privacy: noise hides what crosses a cut, and {scheme.name} has none; choose another scheme")
    if (exchange.aggregated_share > 0 or exchange.mixes) and (config.robust.average != "mean" or config.robust.clip):
        raise AsflError(f"robust: {scheme.name} mixes clients before a gradient is seen; choose another scheme")


def clients_a_pass(profile: ModelProfile, batch_size: int, num_clients: int) -> int:
    """How many clients share a server pass on a CPU: many if the network is small, else one by one."""
    values = float(profile.activation_bits.sum()) / BITS_PER_VALUE * batch_size
    return int(np.clip(MERGED_ACTIVATIONS // max(values, 1.0), 1, num_clients))

"""One scheme being trained: the networks that learn in its rounds (`asfl.runs.round`), and the state between them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import ASFL
from asfl.costs.round import Decision
from asfl.costs.world import Budgets, World
from asfl.data import ImageData, deal
from asfl.models.build import build_model
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.optimize import Learning
from asfl.runs.initial import start_from
from asfl.runs.records import DIVERGED, RoundRecord
from asfl.runs.round import play_round
from asfl.runs.state import Drift, Measured, Run, State, arrays_below, flatten, unflatten
from asfl.schemes import Scheme
from asfl.schemes.base import budgets_of, rules_of, switches_of, watches_noise
from asfl.train.batches import Batches
from asfl.train.evaluate import Gradients, Scoring
from asfl.train.fleet import (
    Fault,
    FleetMaker,
    LocalFleet,
    device_named,
    layer_norms,
    projected_spreads,
    sample_coordinates,
)
from asfl.train.optimizers import rule_named
from asfl.train.privacy import GaussianMechanism, drawn_from, epsilon
from asfl.train.signals import RoundPlan, Trained
from asfl.train.state import Combining, layer_spreads
from asfl.train.steps import Trainer, client_learning_rate

Bools = NDArray[np.bool_]

MERGED_ACTIVATIONS = 1 << 24
"""On a CPU, clients share a server pass as long as their activations there stay below this many values in total."""
BORROWED_DRIFT = Drift(divergence=17.0, exponent=1.0)
"""FedAvg, SL and SFL take blocks and powers from ASFL, whose client sides drift apart; theirs don't. So they assume
that drift. Updates of different clients are about orthogonal, which would be 1; but those of one client point the same
way for many rounds, and their sum grows faster than their number. Fitted with the default `drift_weight`: in the demo,
mean error rates and powers are then ASFL's within 5 %, for FedAvg and SFL (3 seeds, 60 rounds)."""


class Networks:
    """A learner (`asfl.runs.state.Learner`): a trainer, and what its networks are scored with."""

    def __init__(
        self, config: Config, scheme: Scheme, data: ImageData, make_fleet: FleetMaker, *, begins: bool
    ) -> None:
        """Not `begins`: its weights come from a checkpoint, so nothing is trained before round 1."""
        check_protection(config, scheme)
        self._config, self._scheme, clients, seed = config, scheme, config.scenario.clients, config.scenario.seed
        training, device, central = config.training, device_named(config.training.device), scheme.exchange.central
        if scheme.exchange.local_loss and make_fleet is not LocalFleet:
            raise AsflError(f"{scheme.name} trains in this process only: its clients can't be elsewhere")
        if make_fleet is LocalFleet and config.privacy.noisy:
            make_fleet = partial(LocalFleet, blur=GaussianMechanism(config.privacy, drawn_from(seed)))
        parts: Sequence[NDArray[np.int64]] = [np.zeros(0, np.int64)] * clients
        self._samples_each = np.full(clients, len(data.train_labels) // clients)
        if not config.data.private:  # else the server doesn't know who has what
            parts = deal(data, config)
        of_each = training.local_steps * max(scheme.exchange.local_loss, 1)
        batches = clients_batches = Batches.of(data, parts, config, device, local_steps=of_each)
        if central:  # one "client" that has all the data, and takes every client's steps
            steps = training.local_steps * min(clients, config.radio.num_rbs)
            batches = Batches.of(data, [np.concatenate(parts)], config, device, local_steps=steps)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random_stream(seed, "initial weights").integers(2**62)))
            model = build_model(config.model_spec, training.precision)
        if begins:
            start_from(model, config, data, parts, device)
        merge = clients
        if device.type != "cuda":
            merge = clients_a_pass(load_profile(config.model_spec), training.batch_size, clients)
        switches = switches_of(scheme)
        self.trainer = Trainer(
            model,
            batches,
            scheme.exchange,
            rule_named(training.optimizer, training.learning_rate),
            num_clients=1 if central else clients,
            seed=seed,
            device=device,
            merge=merge,
            fleet=make_fleet,
            client_rule=rule_named(training.optimizer, client_learning_rate(config, scheme.exchange)),
            watch_noise=switches.rate or switches.quant or watches_noise(scheme),
            combining=Combining(config.robust.average, clip=config.robust.clip),
            sliced=config.decision.timing == "overlap" and config.radio.slices > 1,
        )
        covered = scheme.exchange == ASFL and training.local_steps == 1 and not config.data.private
        self._gradients = Gradients(model, self.trainer.layout, clients_batches) if covered else None
        self.scoring = Scoring(config, model, data, clients_batches, self.trainer.fleet, device)
        self._ready, self._faults = np.ones(clients, dtype=np.bool_), list[Fault]()
        self.resplit = self.trainer.resplit

    @property
    def cut(self) -> int:
        return self.trainer.state.cut

    def begin(self, index: int) -> Bools:
        self._ready = self.trainer.fleet.begin(index)
        return self._ready

    def learning(self, state: State) -> Learning:
        """Spreads by layer from the clients' reports, update norms, and what decisions beyond the paper need."""
        if self._scheme.exchange.central:
            return state.reference_drift.learning()
        fleet, layout, ratio = self.trainer.fleet, self.trainer.layout, self._config.decision.discrepancy_sample_ratio
        norm2, weights = np.zeros(layout.num_units), fleet.state.weights
        if self._config.decision.equations == "printed":
            fleet.gather()
            norm2 = layer_norms(fleet.state)
        if ratio == "auto":
            spread = projected_spreads(*fleet.projections(), weights, layout.num_units)
        else:
            random = random_stream(self._config.scenario.seed, "reported coordinates", state.round_index)
            columns = sample_coordinates(int(layout.parameter_edges[self.cut]), ratio, random)
            sides, whose = fleet.report(columns)
            spread = layer_spreads(layout, sides, columns, weights[list(whose)]) / ratio
        learning = state.signals.learning(spread, norm2, weights)
        if state.drift_and_noise is None:
            return learning
        return replace(learning, beyond=state.drift_and_noise.seen(spread).learning(spread))

    def train(self, plan: RoundPlan) -> Trained:
        if self._scheme.exchange.central:
            return self._train_centrally(plan.index)
        trained = self.trainer.train(plan)
        self._faults += self.trainer.fleet.take_faults()
        lost = ~self._ready
        lost[[fault.client for fault in self._faults]] = True
        lost &= np.isnan(trained.loss)
        self._check(trained, plan.arrived & ~lost, plan.index)
        return replace(trained, lost=lost)

    def _train_centrally(self, index: int) -> Trained:
        """One model, so all clients' results are the same."""
        there = np.ones(1, dtype=np.bool_)
        trained = self.trainer.train(RoundPlan(index, np.array([self.trainer.layout.num_units]), there, there))
        self._check(trained, there, index)
        of_one = trained.loss, trained.update_norm2, trained.quantisation_error
        loss, norm2, error = (own.repeat(self._config.scenario.clients) for own in of_one)
        return Trained(loss, norm2, error)

    def _check(self, trained: Trained, arrived: Bools, index: int) -> None:
        broken = np.flatnonzero(arrived & ~(np.isfinite(trained.loss) & np.isfinite(trained.update_norm2)))
        if broken.size:
            raise AsflError(
                f"round {index + 1}: {DIVERGED}, client {broken[0]} has a loss of "
                f"{trained.loss[broken[0]]:g} and an update of norm {np.sqrt(trained.update_norm2[broken[0]]):g} "
                f"(training.learning_rate = {self._config.training.learning_rate:g} may be too high)"
            )

    def measure(self, state: State, decision: Decision) -> Measured:
        config, index, fleet, gradient = self._config, state.round_index, self.trainer.fleet, None
        last = state.is_last(config.training.rounds)
        evaluations, rest = divmod(index, config.output.evaluate_every)
        measured = self.evaluate(whole=last) if last or rest == 0 else Measured()
        # At the 1st, 4th, 9th, 16th … evaluation: often while much changes, and cheap in the long run.
        if self._gradients is not None and rest == 0 and math.isqrt(evaluations) ** 2 == evaluations:
            fleet.gather()
            gradient = self._gradients.measure(self.trainer.state, index)
        faults, self._faults = [*self._faults, *fleet.take_faults()], []
        return replace(
            measured,
            gradient=gradient,
            epsilon=None if state.rounds_taken is None else self._epsilon(state, epochs=decision.batch is None),
            faults=[
                {"client": one.client, "round": one.round + 1, "stage": one.stage, "reason": one.reason}
                for one in faults
            ]
            or None,
        )

    def evaluate(self, *, whole: bool) -> Measured:
        """On all test images, or on the configured number of them."""
        self.trainer.fleet.gather()
        scores = self.scoring.scores(self.trainer.state, whole=whole)
        if scores is None:
            return Measured()
        score, uncalibrated, of_clients = scores
        return Measured(score.accuracy, score.loss, uncalibrated.accuracy, of_clients, list(score.by_client) or None)

    def _epsilon(self, state: State, *, epochs: bool) -> float:
        """Of the client that has revealed most so far; without `epochs`, any sample may be in any mini-batch."""
        assert state.rounds_taken is not None
        training, samples = self._config.training, self.trainer.state.samples
        steps = state.rounds_taken * training.local_steps
        # A sample crosses once in an epoch, and epochs go on while a client sits out.
        epoch = np.maximum((samples if self._config.data.uneven else self._samples_each) // training.batch_size, 1)
        crossed = np.minimum(steps, np.ceil(state.round_index * training.local_steps / epoch)) if epochs else steps
        return epsilon(self._config.privacy, int(crossed.max()))


class Simulation:
    """One scheme being trained: a run, and the state it is in. An iterator over the records of its rounds."""

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

        `recorded` and `begins` as in `Run` and `Networks`.
        """
        self.config, self.scheme, self.world = config, scheme, world or World.of(config)
        self.budgets = budgets or budgets_of(self.world, scheme)
        rules = rules_of(config, self.budgets, switches_of(scheme))
        networks, accountant = Networks(config, scheme, data, fleet, begins=begins), self.world.accountant()
        self.trainer = networks.trainer
        self._networks = networks
        self.run = Run(config, self.world, scheme, self.budgets, rules, networks, accountant, recorded)
        self.state = State.fresh(self.world, scheme, assumed=BORROWED_DRIFT)

    @property
    def round_index(self) -> int:
        """Of the next round, counted from 0."""
        return self.state.round_index

    @property
    def finished(self) -> bool:
        return self.state.is_last(self.config.training.rounds)

    def play_round(self) -> RoundRecord:
        self.state, record = play_round(self.run, self.state)
        return record

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RoundRecord:
        if self.finished:
            raise StopIteration
        return self.play_round()

    def evaluate(self, *, whole: bool) -> Measured:
        return self._networks.evaluate(whole=whole)

    def average_model(self) -> dict[str, Tensor]:
        """The trained model as it is scored, as a `state_dict`."""
        self.trainer.fleet.gather()
        return self.trainer.layout.state_dict(self._networks.scoring.calibrated(self.trainer.state.average_model()))

    # ------------------------------------------------------------------ to and from a checkpoint
    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs besides the configuration."""
        self.trainer.fleet.gather(optimizers=True)
        return {
            **flatten(self.trainer.state, "training"),
            **flatten(self.trainer.fleet.knowledge(), "fleet"),
            **flatten(self.state),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.trainer.restore(unflatten(self.trainer.state, tensors, "training"))
        self.trainer.fleet.scatter(arrays_below("fleet.", tensors))
        self.state = unflatten(self.state, tensors)


def check_protection(config: Config, scheme: Scheme) -> None:
    """Refuse settings that a scheme's rounds can't keep."""
    exchange = scheme.exchange
    if exchange.local_loss and (config.privacy.noisy or config.robust.average != "mean" or config.robust.clip):
        section = "privacy" if config.privacy.noisy else "robust"
        raise AsflError(f"{section}: {scheme.name} knows neither noise nor robust averages; choose another scheme")
    if config.privacy.noisy and (exchange.full_local_model or exchange.central):
        raise AsflError(f"privacy: noise hides what crosses a cut, and {scheme.name} has none; choose another scheme")
    if (exchange.aggregated_share > 0 or exchange.mixes) and (config.robust.average != "mean" or config.robust.clip):
        raise AsflError(f"robust: {scheme.name} mixes clients before a gradient is seen; choose another scheme")


def clients_a_pass(profile: ModelProfile, batch_size: int, num_clients: int) -> int:
    """How many clients share a server pass on a CPU: many if the network is small, else one by one."""
    values = float(profile.activation_bits.sum()) / BITS_PER_VALUE * batch_size
    return int(np.clip(MERGED_ACTIVATIONS // max(values, 1.0), 1, num_clients))

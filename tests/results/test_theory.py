"""The bounds against what they bound: random queues, exact expectations, and ASFL itself on quadratic losses."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from asfl.results import theory
from asfl.results.theory import ExcessBounds, LearningConstants

Floats = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)
memories = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
ROUNDING = 1e-9


# ---------------------------------------------------------------------- queues
@dataclass(frozen=True, eq=False)
class QueueRun:
    bounds: ExcessBounds
    memory: float
    keep: float
    add: float
    excess: Floats  # [R, N+1]
    queues: Floats  # [R+1, N+1]
    units: Floats  # [N+1], what an excess was divided by
    budgets: Floats  # [N+1]
    most: Floats  # [N+1], largest possible cost

    @property
    def rule(self) -> dict[str, float]:
        return {"keep": self.keep, "add": self.add}

    @property
    def rounds(self) -> int:
        return len(self.excess)

    @property
    def clients(self) -> int:
        return len(self.budgets) - 1

    @property
    def printed(self) -> bool:
        return (self.keep, self.add) != (1.0, 1.0)

    @property
    def excess_bounds(self) -> Floats:
        return np.array([self.bounds.delay] + [self.bounds.energy] * self.clients)

    @property
    def most_excess(self) -> Floats:
        return np.array([self.bounds.most_delay] + [self.bounds.most_energy] * self.clients)

    @property
    def tolerance(self) -> float:
        return ROUNDING * float(1 + self.excess_bounds.sum() * self.rounds) ** 2

    def random_excess(self, seed: int) -> Floats:
        """Of another policy: anything from a round that costs nothing to one that costs the most."""
        cost = extreme_uniform(np.random.default_rng(seed), self.excess.shape) * self.most
        return np.asarray((cost - self.budgets) / self.units)


def excess_bounds(
    delay_budget: float, energy_budget: float, max_delay: float, max_energy: float, *, normalised: bool
) -> ExcessBounds:
    """Lemma 3 from γ, δ, T_max and E_max; normalised, an excess is divided by its budget (a budget of 0 stays)."""
    delay_unit = delay_budget if normalised and delay_budget > 0 else 1.0
    energy_unit = energy_budget if normalised and energy_budget > 0 else 1.0
    over_delay, over_energy = max_delay - delay_budget, max_energy - energy_budget
    return ExcessBounds(
        max(delay_budget, over_delay) / delay_unit,
        max(energy_budget, over_energy) / energy_unit,
        over_delay / delay_unit,
        over_energy / energy_unit,
    )


def extreme_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Uniform on [0, 1], or often exactly 0 or 1."""
    uniform = rng.random(shape)
    return np.asarray(np.where(rng.random(shape) < 0.4, np.round(uniform), uniform))


def step(queue: Floats, excess: Floats, keep: float, add: float) -> Floats:
    return np.maximum(keep * queue + add * excess, 0.0)


@st.composite
def queue_runs(draw: st.DrawFn, *, rule: str | None = None) -> QueueRun:
    clients, rounds = draw(st.integers(0, 4)), draw(st.integers(1, 40))
    delay_budget, energy_budget = draw(st.floats(0.01, 50)), draw(st.floats(0.01, 50))
    max_delay, max_energy = delay_budget * draw(st.floats(0.1, 6)), energy_budget * draw(st.floats(0.1, 6))
    normalised, memory = draw(st.booleans()), draw(memories)
    rule = rule or draw(st.sampled_from(["printed", "standard"]))
    keep, add = (memory, 1 - memory) if rule == "printed" else (1.0, 1.0)
    bounds = excess_bounds(delay_budget, energy_budget, max_delay, max_energy, normalised=normalised)
    budgets = np.array([delay_budget] + [energy_budget] * clients)
    most = np.array([max_delay] + [max_energy] * clients)
    units = budgets if normalised else np.ones(clients + 1)
    costs = extreme_uniform(np.random.default_rng(draw(seeds)), (rounds, clients + 1)) * most
    excess = (costs - budgets) / units
    queues = [np.zeros(clients + 1)]
    for over in excess:
        queues.append(step(queues[-1], over, keep, add))
    return QueueRun(bounds, memory, keep, add, excess, np.array(queues), units, budgets, most)


@given(queue_runs())
def test_lemma_4_bounds_every_queue(run: QueueRun) -> None:
    for after in range(run.rounds + 1):
        tight = [theory.queue_bound(most, after, **run.rule) for most in run.most_excess]
        assert np.all(run.queues[after] <= np.array(tight) + run.tolerance)
        if run.printed:
            assert np.all(np.array(tight) <= run.excess_bounds * (1 + ROUNDING))


def test_queue_bounds_are_reached() -> None:
    assert theory.queue_bound(2.0, 3, keep=0.5, add=0.5) == 2.0 * (1 - 0.5**3)
    assert theory.queue_bound(2.0, 3, keep=1.0, add=1.0) == 6.0
    assert theory.queue_bound(2.0, 3, keep=1.0, add=0.0) == 0.0
    assert theory.queue_bound(-2.0, 3, keep=1.0, add=1.0) == 0.0
    # A queue that ignores the excess bounds nothing.
    assert theory.printed_violation_bound(1.0, 10, 1.0) == math.inf
    assert np.all(np.isinf(theory.average_excess_bound(np.zeros((11, 3)), keep=1.0, add=0.0)))


@given(queue_runs())
def test_theorem_2_bounds_the_average_excess(run: QueueRun) -> None:
    average = run.excess.mean(axis=0)
    recorded = theory.average_excess_bound(run.queues, **run.rule)
    scale = run.tolerance / run.add if run.add else 0.0
    assert np.all(average <= recorded + scale)
    if run.printed:
        printed = [theory.printed_violation_bound(bound, run.rounds, run.memory) for bound in run.excess_bounds]
        assert np.all(recorded <= np.array(printed) + scale)
        assert np.all(average <= run.most_excess + run.tolerance)  # true of any policy …
        assert np.all(run.most_excess < np.array(printed))  # … and stronger than Theorem 2


@given(queue_runs())
def test_recorded_bound_is_the_papers_sum_and_exact_without_clipping(run: QueueRun) -> None:
    if run.add < 1e-3:
        return
    recorded = theory.average_excess_bound(run.queues, **run.rule)
    by_hand = run.queues[-1] / (run.add * run.rounds) + (1 - run.keep) / run.add * run.queues[:-1].mean(axis=0)
    assert recorded == pytest.approx(by_hand, rel=1e-6, abs=1e-6)
    unclipped = np.all(run.queues[1:] > 0, axis=0)
    assert recorded[unclipped] == pytest.approx(run.excess.mean(axis=0)[unclipped], rel=1e-6, abs=1e-6)


@given(queue_runs())
def test_lemma_5_bounds_the_exact_drift(run: QueueRun) -> None:
    bound = theory.drift_bound(run.queues[:-1], run.excess, run.bounds, **run.rule)
    by_hand = [0.5 * (after @ after - before @ before) for before, after in itertools.pairwise(run.queues)]
    drift = theory.lyapunov_drift(run.queues)
    assert drift == pytest.approx(np.array(by_hand), abs=run.tolerance)
    assert np.all(bound >= drift - run.tolerance)


@given(queue_runs(rule="printed"), seeds, st.floats(0.01, 1e3))
def test_theorem_3_holds_with_the_smallest_slack(run: QueueRun, seed: int, weight: float) -> None:
    """For any decisions, and any policy they are compared with."""
    objective, comparison = np.random.default_rng(seed).random((2, run.rounds)) * 10
    slack = theory.smallest_slack(
        run.queues, objective, run.random_excess(seed), comparison, run.bounds, penalty_weight=weight, **run.rule
    )
    constant = theory.printed_gap_constant(run.bounds, run.clients, run.memory)
    gap = float((objective - comparison).mean())
    assert gap <= theory.performance_gap_bound(constant, slack, weight) + run.tolerance / weight


def test_gap_constant_is_the_printed_one_and_needs_a_round_that_can_exceed() -> None:
    bounds = excess_bounds(2.0, 3.0, 7.0, 10.0, normalised=False)
    by_hand = 0.5 * 0.6**2 * (25 + 4 * 49) + 0.4 * 0.6 * (5 * 5 + 4 * 7 * 7)
    assert theory.printed_gap_constant(bounds, 4, 0.4) == pytest.approx(by_hand)
    slack_budgets = excess_bounds(2.0, 3.0, 1.0, 1.0, normalised=False)
    assert theory.printed_gap_constant(slack_budgets, 4, 0.4) == pytest.approx(0.5 * 0.6**2 * (4 + 4 * 9))
    assert theory.performance_gap_bound(1.0, 0.0, 0.0) == math.inf


@given(queue_runs(), seeds, st.floats(0.01, 100))
def test_minimising_drift_plus_penalty_needs_no_slack(run: QueueRun, seed: int, weight: float) -> None:
    """Choose the best of four decisions each round; compare with any other choice among the same four."""
    rng = np.random.default_rng(seed)
    excess = np.array([run.random_excess(int(rng.integers(2**31))) for _ in range(4)])  # [decision, R, N+1]
    excess[0] = np.minimum(excess[0], 0.0)  # the first one keeps all budgets
    objective = rng.random((4, run.rounds))
    queues, chosen = [np.zeros(run.clients + 1)], []
    for index in range(run.rounds):
        after = [step(queues[-1], over, run.keep, run.add) for over in excess[:, index]]
        cost = [
            0.5 * float(queue @ queue) + weight * value for queue, value in zip(after, objective[:, index], strict=True)
        ]
        chosen.append(int(np.argmin(cost)))
        queues.append(after[chosen[-1]])
    every = np.arange(run.rounds)
    reached = objective[chosen, every]

    def slack(other: NDArray[np.int64]) -> float:
        return theory.smallest_slack(
            queues,
            reached,
            excess[other, every],
            objective[other, every],
            run.bounds,
            penalty_weight=weight,
            **run.rule,
        )

    assert slack(rng.integers(4, size=run.rounds)) <= run.tolerance

    # Against the decision that keeps all budgets, W is the drift constant, for either rule.
    always_first = np.zeros(run.rounds, np.int64)
    constant = theory.drift_constant(run.bounds, run.clients, add=run.add)
    left = slack(always_first)
    gap = float((reached - objective[0]).mean())
    assert gap <= theory.performance_gap_bound(constant, left, weight) + run.tolerance / weight
    if not run.printed:  # Theorem 2 as it should be: the average excess is at most √(2 (B + C + V·span) / R)
        bound = math.sqrt(2 * max(constant + left - weight * gap, 0.0) / run.rounds)
        assert np.all(excess[chosen, every].mean(axis=0) <= bound + run.tolerance)


# ---------------------------------------------------------------------- who arrives
@given(st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=7))
def test_arrivals_against_all_outcomes(rates: list[float]) -> None:
    rate, count = np.array(rates), len(rates)
    weights, inverse = np.zeros(count), 0.0
    for beta, probability in outcomes(rate):
        if beta.any():
            weights += probability * beta / beta.sum()
            inverse += probability / beta.sum()
    assert theory.arrival_weights(rate) == pytest.approx(weights, abs=1e-12)
    assert theory.expected_inverse_arrivals(rate) == pytest.approx(inverse, abs=1e-12)
    assert theory.loss_imbalance(np.full(count, rates[0])) == pytest.approx(0.0, abs=1e-12)
    assert 1 - rate.mean() <= weights.sum() + 1e-12 <= 1 + 2e-12  # p ≤ q ≤ 1, which the bound uses


def outcomes(rate: Floats) -> list[tuple[Floats, float]]:
    """Every pattern of arrivals and its probability."""
    patterns = [np.array(bits, float) for bits in itertools.product([0, 1], repeat=len(rate))]
    return [(beta, float(np.prod(np.where(beta > 0, 1 - rate, rate)))) for beta in patterns]


# ---------------------------------------------------------------------- quadratic clients
@dataclass(frozen=True, eq=False)
class Quadratics:
    """F_n(w) = ½ (w − b_n)ᵀ A_n (w − b_n), with gradients that carry independent Gaussian noise."""

    curvature: Floats  # [N, d, d]
    centre: Floats  # [N, d]
    noise2: float

    @classmethod
    def random(cls, rng: np.random.Generator, clients: int, size: int, spread: float, noise2: float) -> "Quadratics":
        basis = np.linalg.qr(rng.normal(size=(clients, size, size)))[0]
        eigenvalues = rng.uniform(0.05, 1.0, size=(clients, size))
        curvature = np.einsum("nik,nk,njk->nij", basis, eigenvalues, basis)
        return cls(curvature, 1.0 + spread * rng.normal(size=(clients, size)), noise2)

    @property
    def smoothness(self) -> float:
        return float(np.linalg.norm(self.curvature, ord=2, axis=(1, 2)).max())

    def gradients(self, models: Floats) -> Floats:
        """[..., N, d], client n at models[..., n, :]."""
        return np.asarray(np.einsum("nij,...nj->...ni", self.curvature, models - self.centre))

    def gradient(self, model: Floats) -> Floats:
        """∇F at one model for all, [..., d]."""
        return np.asarray(self.gradients(model[..., None, :]).mean(axis=-2))

    def loss(self, model: Floats) -> Floats:
        apart = model[..., None, :] - self.centre
        return np.asarray(0.5 * np.einsum("...ni,nij,...nj->...n", apart, self.curvature, apart).mean(axis=-1))

    @property
    def optimum(self) -> Floats:
        pulled = np.einsum("nij,nj->i", self.curvature, self.centre)
        return np.asarray(np.linalg.solve(self.curvature.sum(axis=0), pulled))


def dissimilarity2_of(gradients: Floats) -> float:
    """ζ²: the largest squared distance of a client's gradient [..., N, d] from the mean over clients."""
    return float(np.square(gradients - gradients.mean(axis=-2, keepdims=True)).sum(axis=-1).max())


@dataclass(frozen=True, eq=False)
class SingleRound:
    """One round whose expectation is exact: every pattern of losses is enumerated, nothing is sampled."""

    clients: Quadratics
    models: Floats  # [N, d] after stage 1
    cut: int
    packet_error_rate: Floats
    step: float
    """η L."""
    before: Floats | None = None
    """[d] the average model before stage 1, if that moved it."""

    @property
    def learning_rate(self) -> float:
        return self.step / self.clients.smoothness

    @property
    def average(self) -> Floats:
        return np.asarray(self.models.mean(axis=0))

    @property
    def client_spread(self) -> float:
        return float(np.square(self.models - self.average).sum(axis=1).mean())

    @property
    def measured(self) -> float:
        return float(np.square(self.clients.gradient(self.average)).sum())

    def expected_loss_after(self) -> float:
        """E[F(w̄⁺)]."""
        cut, (count, size) = self.cut, self.models.shape
        gradients = self.clients.gradients(self.models)
        noise_loss = np.diagonal(self.clients.curvature.mean(axis=0)) * self.clients.noise2 / size
        expected = 0.0
        for beta, probability in outcomes(self.packet_error_rate):
            share = beta / max(beta.sum(), 1.0)
            move = np.concatenate([beta @ gradients[:, :cut] / count, share @ gradients[:, cut:]])
            noise = beta.sum() / count**2 * noise_loss[:cut].sum() + (share @ share) * noise_loss[cut:].sum()
            loss = self.clients.loss(self.average - self.learning_rate * move)
            expected += probability * float(loss + 0.5 * self.learning_rate**2 * noise)
        return expected

    def bounds(self) -> tuple[theory.GradientBound, theory.GradientBound]:
        """With R = 1 and F(w̄) − E F(w̄⁺) for the initial gap, the theorems are the inequality their proofs sum up."""
        before = self.average if self.before is None else self.before
        gradients = self.clients.gradients(self.models)
        visited = np.concatenate([gradients, self.clients.gradients(before[None])])
        constants = LearningConstants(
            smoothness=self.clients.smoothness,
            noise2=self.clients.noise2,
            gradient2=float(np.square(visited).sum(axis=1).max()) + self.clients.noise2,
            initial_gap=float(self.clients.loss(before)) - self.expected_loss_after(),
            learning_rate=self.learning_rate,
        )
        rate, spread, shift = self.packet_error_rate, [self.client_spread], [np.linalg.norm(self.average - before)]
        inverse = theory.expected_inverse_arrivals(rate)
        different = dissimilarity2_of(gradients)
        return (
            theory.corrected_gradient_bound(constants, spread, [rate.mean()], [inverse], shift),
            theory.arrival_weighted_gradient_bound(constants, spread, rate[None], shift, different),
        )


@st.composite
def single_rounds(draw: st.DrawFn) -> SingleRound:
    count, size = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(seeds))
    spread, noise2 = draw(st.sampled_from([0.0, 1.0, 100.0])), draw(st.sampled_from([0.0, 1.0, 100.0]))
    clients = Quadratics.random(rng, count, size, spread, noise2)
    if draw(st.booleans()):  # not convex
        clients = replace(clients, curvature=clients.curvature * rng.choice([-1.0, 1.0], size=(count, 1, 1)))
    cut = draw(st.integers(1, size - 1))
    models = np.tile(rng.normal(size=size), (count, 1))
    models[:, :cut] += draw(st.sampled_from([0.0, 0.1, 10.0])) * rng.normal(size=(count, cut))
    rates = draw(st.lists(st.one_of(st.sampled_from([0.0, 0.9, 1.0]), st.floats(0, 1)), min_size=count, max_size=count))
    rate = np.full(count, rates[0]) if draw(st.booleans()) else np.array(rates)
    before = models.mean(axis=0) + draw(st.sampled_from([0.0, 0.1, 1.0])) * rng.normal(size=size)
    return SingleRound(clients, models, cut, rate, draw(st.floats(0.01, 1.5)), before)


@settings(max_examples=150)
@given(single_rounds())
def test_corrected_bounds_hold_in_every_single_round(one: SingleRound) -> None:
    for bound in one.bounds():
        scale = abs(bound.start) + bound.noise + bound.drift + bound.losses + bound.resplit
        assert one.measured <= bound.total + ROUNDING * scale


LOSSES = np.full(2, 0.01)
NONE_LOST = np.zeros(1)
ROUND_BOWL = Quadratics(2.0 * np.eye(4)[None], np.ones((1, 4)), 0.0)
APART = np.array([[1.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]])
SADDLES = Quadratics(np.array([np.eye(4), -np.eye(4)]), APART, 0.0)
OPPOSITE = Quadratics(np.array([np.eye(4), np.eye(4)]), np.array([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, -1.0]]), 0.0)
ONE_CONTENT = replace(OPPOSITE, centre=np.array([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))


@pytest.mark.parametrize(
    ("one", "term", "needed"),
    [
        (SingleRound(ROUND_BOWL, np.zeros((1, 4)), 2, NONE_LOST, 1.0), "start", 1.0),
        (SingleRound(replace(ROUND_BOWL, noise2=7.0), np.zeros((1, 4)), 2, NONE_LOST, 1.0), "noise", 1.0),
        (SingleRound(ROUND_BOWL, np.zeros((1, 4)), 2, NONE_LOST, 1.5), "noise", 1.0),
        (SingleRound(SADDLES, APART, 2, np.zeros(2), 1.0), "drift", 0.5),
        (SingleRound(OPPOSITE, np.zeros((2, 4)), 2, LOSSES, 1.0), "losses", 0.45),
        (SingleRound(ONE_CONTENT, np.zeros((2, 4)), 2, np.array([0.0, 1.0]), 0.01), "losses", 0.12),
        (SingleRound(ROUND_BOWL, np.zeros((1, 4)), 2, NONE_LOST, 1.0, np.full(4, 0.1)), "resplit", 0.9),
    ],
    ids=["start", "noise", "long step", "drift", "losses", "silent client", "re-split"],
)
def test_no_term_of_the_corrected_bounds_can_be_left_out(one: SingleRound, term: str, needed: float) -> None:
    """Worst cases: at least so much of the term is needed, mostly all of it."""
    for bound in one.bounds():
        value = getattr(bound, term)
        missing = one.measured - (bound.total - value)
        assert 0 < missing <= value * (1 + ROUNDING)
        assert missing >= needed * value * (1 - 1e-6)


# ---------------------------------------------------------------------- whole runs
@dataclass(frozen=True)
class Setting:
    """A world for ASFL on quadratics; `step` is η L."""

    name: str
    clients: int = 5
    spread: float = 1.0
    noise2: float = 1.0
    error_rate: float | None = 0.2
    """None: a different one for each client and round."""
    scheduled: int = 5
    step: float = 0.3
    rounds: int = 40
    moving_cut: bool = True


SETTINGS = [
    Setting("plain"),
    Setting("no losses", error_rate=0.0),
    Setting("longer steps than 1/L", step=1.3, noise2=10.0),
    Setting("everything lost", error_rate=1.0),
    Setting("unequal losses, some sit out", scheduled=2, error_rate=None),
    Setting("huge heterogeneity, long steps, 90 % lost", spread=300.0, error_rate=0.9, step=0.99, scheduled=2),
    Setting("noise only", spread=0.0, noise2=100.0, step=0.05),
    Setting("two clients, fixed cut", clients=2, scheduled=2, moving_cut=False, spread=20.0),
    Setting("many clients", clients=12, scheduled=12, error_rate=None),
]


@dataclass(frozen=True, eq=False)
class Training:
    """What a run leaves behind: [repetition, R], except for the error rates [R, N] and the constants."""

    constants: LearningConstants
    packet_error_rate: Floats
    gradient2: Floats
    client_spread: Floats
    lost_server_norm2: Floats
    lost_share: Floats
    inverse_arrivals: Floats
    resplit_shift: Floats
    dissimilarity2: float


def train(world: Setting, seed: int, repetitions: int = 100, size: int = 6) -> Training:
    """ASFL with one-parameter layers. Losses and noise are drawn anew in each repetition, all else is shared."""
    rng = np.random.default_rng(seed)
    count, rounds = world.clients, world.rounds
    clients = Quadratics.random(rng, count, size, world.spread, world.noise2)
    learning_rate = world.step / clients.smoothness
    cuts = rng.integers(1, size, size=rounds) if world.moving_cut else np.full(rounds, size // 2)
    rate = rng.random((rounds, count)) if world.error_rate is None else np.full((rounds, count), world.error_rate)
    has_rb = np.argsort(rng.random((rounds, count)), axis=1) < world.scheduled
    rate = np.where(has_rb, rate, 1.0)

    models = np.zeros((repetitions, count, size))  # client n's layers; those above the cut are equal: one server side
    gradient2, spread, server_norm2, lost, inverse, shift = np.empty((6, repetitions, rounds))
    largest, dissimilarity2 = 0.0, 0.0
    previous = int(cuts[0])
    for index in range(rounds):
        cut = int(cuts[index])
        # 1. Re-split: shrinking, those with a resource block send, and the server averages; growing, all get the same.
        before = models.mean(axis=1)
        if cut < previous:
            models[:, :, cut:previous] = models[:, has_rb[index], cut:previous].mean(axis=1, keepdims=True)
        previous = cut
        average = models.mean(axis=1)
        assert np.ptp(models[:, :, cut:], axis=1).max() < 1e-9 * (1 + np.abs(models).max())
        # 2. Forward passes; packets get lost.
        arrived = (rng.random((repetitions, count)) >= rate[index]).astype(float)
        exact = clients.gradients(models)
        noisy = exact + rng.normal(size=exact.shape) * math.sqrt(world.noise2 / size)
        # (what the theorems speak of, before anything moves)
        arrivals = arrived.sum(axis=1)
        gradient2[:, index] = np.square(clients.gradient(average)).sum(axis=1)
        spread[:, index] = np.square(models - average[:, None]).sum(axis=2).mean(axis=1)
        lost[:, index] = (1 - arrived).mean(axis=1)
        server_norm2[:, index] = lost[:, index] * np.square(average[:, cut:]).sum(axis=1)
        inverse[:, index] = np.where(arrivals > 0, 1 / np.maximum(arrivals, 1), 0.0)
        shift[:, index] = np.linalg.norm(average - before, axis=1)
        for visited in (exact, clients.gradients(average[:, None]), clients.gradients(before[:, None])):
            largest = max(largest, float(np.square(visited).sum(axis=2).max()))
        dissimilarity2 = max(dissimilarity2, dissimilarity2_of(exact))
        # 3. Arrived clients step; the server side is the average over those that arrived.
        server = (arrived[:, :, None] * noisy).sum(axis=1) / np.maximum(arrivals, 1)[:, None]
        models[:, :, :cut] -= learning_rate * arrived[:, :, None] * noisy[:, :, :cut]
        models[:, :, cut:] -= learning_rate * server[:, None, cut:]
    start = float(clients.loss(np.zeros(size)) - clients.loss(clients.optimum))
    constants = LearningConstants(clients.smoothness, world.noise2, largest + world.noise2, start, learning_rate)
    return Training(constants, rate, gradient2, spread, server_norm2, lost, inverse, shift, dissimilarity2)


def margin(values: Floats) -> float:
    """Four standard errors of the mean over repetitions."""
    per_repetition = values.mean(axis=1)
    return 4 * float(per_repetition.std(ddof=1)) / math.sqrt(len(per_repetition))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("world", SETTINGS, ids=lambda world: world.name)
def test_theorem_1_printed_and_corrected_on_whole_runs(world: Setting, seed: int) -> None:
    run = train(world, seed)
    constants, measured = run.constants, float(run.gradient2.mean())
    spread = run.client_spread.mean(axis=0)
    shift = np.sqrt(np.square(run.resplit_shift).mean(axis=0))  # at least E[ε], and squared E[ε²]
    sampling = margin(run.gradient2) + 2 * constants.smoothness**2 * margin(run.client_spread)

    printed = theory.printed_gradient_bound(constants, spread, run.lost_server_norm2.mean(axis=0))
    assert measured <= constants.gradient2 < printed.total / 2.999  # true, and empty: ψ² holds anyway

    lost_share = run.packet_error_rate.mean(axis=1)
    inverse = theory.expected_inverse_arrivals(run.packet_error_rate)
    corrected = theory.corrected_gradient_bound(constants, spread, lost_share, inverse, shift)
    assert measured <= corrected.total + sampling

    recorded = zip(run.client_spread, run.lost_share, run.inverse_arrivals, run.resplit_shift, strict=True)
    realised = [theory.corrected_gradient_bound(constants, *repetition).total for repetition in recorded]
    assert measured <= np.mean(realised) + sampling

    arrival_share = 1 - lost_share
    if arrival_share.sum() > 0:
        weighted = float(run.gradient2.mean(axis=0) @ arrival_share / arrival_share.sum())
        for dissimilarity2 in (None, run.dissimilarity2):
            sharper = theory.arrival_weighted_gradient_bound(
                constants, spread, run.packet_error_rate, shift, dissimilarity2
            )
            assert weighted <= sharper.total + sampling / arrival_share.mean()


def test_the_corrected_bound_can_say_something() -> None:
    """Like clients, short steps, enough rounds: far below ψ², under even losses too. The printed one never is."""
    world = Setting("", spread=0.0, noise2=0.1, error_rate=0.02, step=0.05, rounds=3000)
    run = train(world, 0, repetitions=2)
    spread = run.client_spread.mean(axis=0)
    expected = theory.expected_inverse_arrivals(run.packet_error_rate)
    lost_share = run.packet_error_rate.mean(axis=1)
    corrected = theory.corrected_gradient_bound(run.constants, spread, lost_share, expected)
    assert corrected.total < 0.1 * run.constants.gradient2

    half_lost = train(replace(world, error_rate=0.5), 0, repetitions=2)
    sharper = theory.arrival_weighted_gradient_bound(
        half_lost.constants, half_lost.client_spread.mean(axis=0), half_lost.packet_error_rate
    )
    assert sharper.total < 0.3 * half_lost.constants.gradient2

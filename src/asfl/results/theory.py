"""The paper's guarantees as numbers, beside ones that hold for the algorithm: Theorem 1 (§III), Theorems 2, 3 (§IV-A).

Queues come as the paper's vector Q = (Q_0, Q_1, …, Q_N): delay first, then each client's energy; so do excesses g. A
queue rule is its two weights, Q ← max(keep·Q + add·g, 0): (μ, 1−μ) is the printed rule (32), (1, 1) the standard one.
`docs/theory.md` has the derivations and says what each result is worth.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


# ---------------------------------------------------------------------- queues: Lemmas 3 to 5, Theorems 2 and 3
@dataclass(frozen=True)
class ExcessBounds:
    """How far from budget a round can be, Lemma 3 (35)–(36): |g_0| ≤ √G₁ = max(γ, T_max − γ), |g_n| ≤ √G₂."""

    delay: float
    """√G₁. Also Lemma 4 as printed: Q_0 ≤ √G₁ under rule (32)."""
    energy: float
    """√G₂, and Lemma 4's Q_n ≤ √G₂."""
    most_delay: float
    """T_max − γ, the largest g_0; negative if no round can be over budget."""
    most_energy: float
    """E_max − δ."""


def queue_bound(most_excess: float, rounds: int, *, keep: float, add: float) -> float:
    """Largest backlog after `rounds` rounds: Q ≤ add · (1 + keep + … + keep^(R−1)) · max(g_max, 0).

    The printed rule gives (1 − μ^R) g_max, which is at most Lemma 4's √G (37). The standard rule gives R · g_max.
    """
    return add * sum(keep**age for age in range(rounds)) * max(most_excess, 0.0)


def printed_violation_bound(excess_bound: float, rounds: int, memory: float) -> float:
    """Theorem 2 (42): average excess ≤ (1 + 1/((1−μ)R)) · √G; infinite at μ = 1. Empty: above √G, the most there is."""
    return excess_bound * (1 + 1 / ((1 - memory) * rounds)) if memory < 1 else math.inf


def average_excess_bound(queues: ArrayLike, *, keep: float, add: float) -> Floats:
    """Average excess, bounded by the queues of a run, [R+1, …] from Q¹ to Q^(R+1), one bound per queue.

    From Q⁺ ≥ keep·Q + add·g: (1/R) Σ g ≤ (1/R) Σ (Q^(r+1) − keep·Q^r) / add. For the printed rule and Q¹ = 0 that is
    Q^(R+1)/((1−μ)R) + (1/R) Σ Q^r, which is (44) before Lemma 4 is put in; for the standard rule Q^(R+1)/R. Infinite if
    the queue ignores the excess (μ = 1). Exact if no queue was ever clipped at 0.
    """
    backlog = np.asarray(queues, float)
    if add == 0:
        return np.full(backlog.shape[1:], np.inf)
    return np.asarray((backlog[1:] - keep * backlog[:-1]).mean(axis=0) / add)


def lyapunov_drift(queues: ArrayLike) -> Floats:
    """Δ^r = ½(‖Q^(r+1)‖² − ‖Q^r‖²), (33): [R] from the queues [R+1, N+1]."""
    return np.diff(0.5 * np.square(np.asarray(queues, float)).sum(axis=-1))


def drift_constant(bounds: ExcessBounds, num_clients: int, *, add: float) -> float:
    """B = ½ add² (G₁ + N G₂), the part of Lemma 5 that no decision changes; also W of a comparison with g* ≤ 0."""
    return 0.5 * add * add * (bounds.delay**2 + num_clients * bounds.energy**2)


def drift_bound(queues: ArrayLike, excess: ArrayLike, bounds: ExcessBounds, *, keep: float, add: float) -> Floats:
    """Lemma 5 (38) without the penalty: Δ ≤ ½ add² (G₁ + N G₂) + keep·add Σ_n Q_n g_n; arrays [..., N+1].

    The proof (40) prints "=" where clipping at 0 makes it "≤"; the lemma holds.
    """
    backlog, over = np.asarray(queues, float), np.asarray(excess, float)
    fixed = drift_constant(bounds, backlog.shape[-1] - 1, add=add)
    return np.asarray(fixed + keep * add * (backlog * over).sum(axis=-1))


def smallest_slack(
    queues: ArrayLike,
    objective: ArrayLike,
    comparison_excess: ArrayLike,
    comparison_objective: ArrayLike,
    bounds: ExcessBounds,
    *,
    penalty_weight: float,
    keep: float,
    add: float,
) -> float:
    """The smallest C ≥ 0 with which Assumption 5 (41) holds in every round of a run.

    Δ^r + V g_obj^r ≤ B + keep·add Σ_n Q_n^r g_n* + V g_obj* + C, for queues [R+1, N+1], objective [R] and a comparison
    policy's excess [R, N+1] and objective [R]. C is an assumption of the paper; it is 0 if each decision minimises
    Δ + V g_obj over a set that contains the comparison's.
    """
    backlog = np.asarray(queues, float)
    reached = lyapunov_drift(backlog) + penalty_weight * np.asarray(objective, float)
    allowed = drift_bound(backlog[:-1], comparison_excess, bounds, keep=keep, add=add)
    allowed = allowed + penalty_weight * np.asarray(comparison_objective, float)
    return max(float((reached - allowed).max()), 0.0)


def printed_gap_constant(bounds: ExcessBounds, num_clients: int, memory: float) -> float:
    """W of Theorem 3 (46): ½(1−μ)²(G₁ + N G₂) + μ(1−μ)(√G₁ (T_max − γ) + N √G₂ (E_max − δ)).

    Here with max(T_max − γ, 0) and max(E_max − δ, 0): if no round can be over budget the printed product is negative,
    while Q_0 g_0* may be 0. Rule (32) only.
    """
    worst = bounds.delay * max(bounds.most_delay, 0.0) + num_clients * bounds.energy * max(bounds.most_energy, 0.0)
    return drift_constant(bounds, num_clients, add=1 - memory) + memory * (1 - memory) * worst


def performance_gap_bound(gap_constant: float, slack: float, penalty_weight: float) -> float:
    """Theorem 3 (46): average objective minus the comparison's ≤ (W + C) / V; infinite at V = 0."""
    return (gap_constant + slack) / penalty_weight if penalty_weight > 0 else math.inf


# ---------------------------------------------------------------------- learning: Theorem 1
@dataclass(frozen=True)
class LearningConstants:
    """What Theorem 1 assumes of the clients' losses (Assumptions 1–3), and where training starts."""

    smoothness: float
    """L: ‖∇F_n(w) − ∇F_n(v)‖ ≤ L ‖w − v‖."""
    noise2: float
    """σ_F²: E‖∇F_n(w; ξ) − ∇F_n(w)‖² is at most this."""
    gradient2: float
    """ψ_F²: E‖∇F_n(w; ξ)‖² is at most this, at own and average models. Covers heterogeneity: ‖∇F_n − ∇F_m‖ ≤ 2ψ."""
    initial_gap: float
    """F(w̄¹) − F(w*)."""
    learning_rate: float
    """η."""


@dataclass(frozen=True)
class GradientBound:
    """A bound of an average of ‖∇F(w̄)‖², by cause. It says something only if `total` is below ψ_F²."""

    start: float
    """Distance from the optimum at the start, spread over the rounds."""
    noise: float
    """Mini-batches and the length of a step."""
    drift: float
    """Client-side models that differ from their average."""
    losses: float
    """Packets that didn't arrive."""
    resplit: float = 0.0
    """Layers averaged without the clients that sat out."""

    @property
    def total(self) -> float:
        return self.start + self.noise + self.drift + self.losses + self.resplit


def printed_gradient_bound(
    constants: LearningConstants, client_spread: ArrayLike, lost_server_norm2: ArrayLike
) -> GradientBound:
    """Theorem 1 as printed, (22), from [R] client_spread = (1/N) Σ_n ‖w̄^c − w_n^c‖² and
    [R] lost_server_norm2 = (1/N) Σ_n (1 − β_n)² ‖w̄^s‖².

    2(F(w̄¹) − F*)/R + 3(σ² + ψ²) + 2(L+2) · mean(client_spread + lost_server_norm2) + 2(L+2) η² ψ².

    Empty: ‖∇F(w̄)‖² ≤ ψ² by Assumption 3, so the constant 3(σ² + ψ²) alone exceeds the left side for any algorithm.
    The server term exists because (23) divides by N what the algorithm divides by the number of arrivals.
    """
    c, weight = constants, 2 * (constants.smoothness + 2)
    return GradientBound(
        start=2 * c.initial_gap / np.size(client_spread),
        noise=3 * (c.noise2 + c.gradient2) + weight * c.learning_rate**2 * c.gradient2,
        drift=weight * _mean(client_spread),
        losses=weight * _mean(lost_server_norm2),
    )


def corrected_gradient_bound(
    constants: LearningConstants,
    client_spread: ArrayLike,
    lost_share: ArrayLike,
    inverse_arrivals: ArrayLike,
    resplit_shift: ArrayLike = 0.0,
) -> GradientBound:
    """Theorem 1 for the algorithm as it is: bounds (1/R) Σ_r E‖∇F(w̄^r)‖², w̄^r the average model after stage 1.

    2(F(w̄¹) − F*)/(ηR) + L η σ² mean(κ) + (Lη − 1)⁺ ψ² + 2L² mean(client_spread) + ψ² mean(8 s̄² + 4Lη s̄)
    + 2/η · mean(ψ ε + L ε²/2), where per round, [R] each,

    - client_spread = (1/N) Σ_n ‖w̄^c − w_n^c‖² after stage 1;
    - lost_share s̄ = (1/N) Σ_n s_n, s_n = 1 for clients that sit out; the realised share of losses will do as well;
    - inverse_arrivals κ = E[1/arrivals] (0 if no client arrives): `expected_inverse_arrivals`, or realised; at most 1;
    - resplit_shift ε = ‖w̄ after stage 1 − w̄ before‖: 0 unless the cut shrinks while some clients sit out.

    One gradient step per round and client, equal sample counts, mini-batches independent of each other and of losses.
    """
    c, eta, smooth = constants, constants.learning_rate, constants.smoothness
    lost = np.asarray(lost_share, float)
    return GradientBound(
        start=_start(c, np.size(client_spread)),
        noise=_noise(c, inverse_arrivals),
        drift=2 * smooth**2 * _mean(client_spread),
        losses=c.gradient2 * _mean(8 * lost * lost + 4 * smooth * eta * lost),
        resplit=_resplit(c, resplit_shift, np.size(client_spread)),
    )


def arrival_weighted_gradient_bound(
    constants: LearningConstants,
    client_spread: ArrayLike,
    packet_error_rate: ArrayLike,
    resplit_shift: ArrayLike = 0.0,
    dissimilarity2: float | None = None,
) -> GradientBound:
    """A sharper Theorem 1, for Σ_r p_r E‖∇F(w̄^r)‖² / Σ_r p_r with p = 1 − s̄: losses slow down, *unequal* losses bias.

    [ 2(F(w̄¹) − F*)/(ηR) + L η σ² mean(κ) + (Lη − 1)⁺ ψ² + 2L² mean(client_spread) + mean(2 I ζ² + 4Lη s̄ ψ²)
    + 2/η · mean(ψ ε + L ε²/2) ] / mean(p), with I = `loss_imbalance` of the error rates [R, N] (1: sits out)
    and ζ² = max_n ‖∇F_n(w_n) − (1/N) Σ_m ∇F_m(w_m)‖²; if ζ² isn't given, ψ² takes its place. Losses are independent
    across clients. Where all error rates are equal I = 0, and everything due to losses vanishes with η.
    """
    c, rate = constants, np.asarray(packet_error_rate, float)
    spread2 = c.gradient2 if dissimilarity2 is None else min(dissimilarity2, c.gradient2)
    arrival_share = 1 - _mean(rate)
    step_noise = 4 * c.smoothness * c.learning_rate * _mean(rate) * c.gradient2
    if arrival_share <= 0:
        return GradientBound(math.inf, 0.0, 0.0, 0.0)
    return GradientBound(
        start=_start(c, len(rate)) / arrival_share,
        noise=_noise(c, expected_inverse_arrivals(rate)) / arrival_share,
        drift=2 * c.smoothness**2 * _mean(client_spread) / arrival_share,
        losses=(2 * _mean(loss_imbalance(rate)) * spread2 + step_noise) / arrival_share,
        resplit=_resplit(c, resplit_shift, len(rate)) / arrival_share,
    )


def _start(c: LearningConstants, rounds: int) -> float:
    return 2 * c.initial_gap / (c.learning_rate * rounds)


def _noise(c: LearningConstants, inverse_arrivals: ArrayLike) -> float:
    """L η σ² mean(κ), and what a step longer than 1/L adds."""
    step = c.smoothness * c.learning_rate
    return step * c.noise2 * _mean(inverse_arrivals) + max(step - 1, 0.0) * c.gradient2


def _resplit(c: LearningConstants, resplit_shift: ArrayLike, rounds: int) -> float:
    shift = np.broadcast_to(np.asarray(resplit_shift, float), (rounds,))
    rise = math.sqrt(c.gradient2) * shift + 0.5 * c.smoothness * shift * shift
    return 2 / c.learning_rate * _mean(rise)


def _mean(values: ArrayLike) -> float:
    return float(np.asarray(values, float).mean())


# ---------------------------------------------------------------------- who arrives
def arrival_weights(packet_error_rate: ArrayLike) -> Floats:
    """a_n = E[β_n / Σ_m β_m], a client's expected weight in the server's average (0/0 = 0); [..., N].

    = (1 − s_n) ∫₀¹ Π_{m≠n} (s_m + (1 − s_m) t) dt, as 1/(1 + k) = ∫ t^k dt; Gauss–Legendre is exact for a polynomial.
    """
    rate = np.asarray(packet_error_rate, float)
    nodes, weights = _nodes(rate.shape[-1])
    factors = rate[..., None, :] + (1 - rate[..., None, :]) * nodes[:, None]  # [..., node, N], never 0
    others = factors.prod(axis=-1, keepdims=True) / factors
    return np.asarray((1 - rate) * (weights[:, None] * others).sum(axis=-2))


def expected_inverse_arrivals(packet_error_rate: ArrayLike) -> Floats:
    """κ = E[1/A; A > 0] for A = Σ_n β_n arrivals: ∫₀¹ (E[t^A] − P(A = 0)) / t dt; [...] from [..., N]."""
    rate = np.asarray(packet_error_rate, float)
    nodes, weights = _nodes(rate.shape[-1])
    generating = (rate[..., None, :] + (1 - rate[..., None, :]) * nodes[:, None]).prod(axis=-1)
    return np.asarray(((generating - rate.prod(axis=-1)[..., None]) / nodes * weights).sum(axis=-1))


def loss_imbalance(packet_error_rate: ArrayLike) -> Floats:
    """I = I_c²/p + I_s²/q, how unequally clients are heard; 0 if all error rates are equal; [...] from [..., N].

    I_c = (1/N) Σ |s_n − s̄| for the client side and p = 1 − s̄; I_s = Σ |a_n − q/N| for the server side, a_n =
    `arrival_weights` and q = Σ a_n, the probability that any client arrives.
    """
    rate = np.asarray(packet_error_rate, float)
    arrival_share = 1 - rate.mean(axis=-1)
    client = np.abs(rate - rate.mean(axis=-1, keepdims=True)).mean(axis=-1)
    weights = arrival_weights(rate)
    any_arrival = weights.sum(axis=-1)
    server = np.abs(weights - weights.mean(axis=-1, keepdims=True)).sum(axis=-1)
    heard = arrival_share > 0
    imbalance = client**2 / np.where(heard, arrival_share, 1.0) + server**2 / np.where(heard, any_arrival, 1.0)
    return np.where(heard, imbalance, 0.0)


def _nodes(num_clients: int) -> tuple[Floats, Floats]:
    """Gauss–Legendre on [0, 1], exact up to degree N − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(num_clients // 2 + 1)
    return (nodes + 1) / 2, weights / 2

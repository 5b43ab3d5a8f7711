"""Settings that protect clients from the server, and the model from clients (docs/security.md)."""

from typing import Literal

from asfl.config.fields import Count, NonNegative, Positive, Section, Share, ShareBelowOne


class Privacy(Section):
    """What the server can learn of the images."""

    min_cut: Count = 1
    """Clients hold at least so many layers in every round: the shallower the cut, the better images can be rebuilt from
    activations."""
    activation_clip: Positive = 1.0
    """C: the activations of one sample are shortened to this norm before noise is added; without noise they aren't."""
    activation_noise: NonNegative = 0.0
    """Standard deviation of the Gaussian noise on activations, in C; 0: none."""
    update_clip: Positive = 1.0
    """C of the gradient of the client side, over a whole mini-batch."""
    update_noise: NonNegative = 0.0
    """Standard deviation of the Gaussian noise on that gradient, in its C; 0: none."""
    delta: Share = 1.0e-5
    """δ of the (ε, δ) in the records."""

    @property
    def noisy(self) -> bool:
        return self.activation_noise > 0 or self.update_noise > 0


class Robustness(Section):
    """What one bad client can do to the model."""

    average: Literal["mean", "median", "trimmed"] = "mean"
    """What gradients on the server, layers that are exchanged and statistics become: their mean by samples; the median
    of each number; or its mean without the largest and smallest."""
    trim: ShareBelowOne = 0.2
    """Share of the clients that "trimmed" leaves out on either side."""
    clip: NonNegative = 0.0
    """Updates longer than this many times the median one are shortened to that; 0: they are not."""

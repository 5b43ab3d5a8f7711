"""Settings of clients in other processes and on other machines."""

from typing import Literal

from pydantic import Field

from asfl.config.fields import AutoSecond, FileName, NonNegative, Second, Section, ShareBelowOne, Watt


class Deadlines(Section):
    """How long the server waits for a real client, by what it was asked for; who is later is lost for the round.

    "auto": 120 s at most (600 s for a whole step), and much less once it is known how long others take
    (docs/field.md).
    """

    sync_s: AutoSecond = "auto"
    """The current layers have reached a client that begins or comes back."""
    resplit_s: AutoSecond = "auto"
    """Layers have moved down, or are up."""
    forward_s: AutoSecond = "auto"
    """Activations are up."""
    backward_s: AutoSecond = "auto"
    """Gradients are down, and the client has learnt from them."""
    learn_s: AutoSecond = "auto"
    """A whole step without a cut (FedAvg) is done."""
    give_s: AutoSecond = "auto"
    """The client's layers are up, in schemes that average them every round."""
    report_s: AutoSecond = "auto"
    """The sampled parameters for the discrepancy are up."""
    gather_s: AutoSecond = "auto"
    """The client's layers are up, for an evaluation or a checkpoint."""


class Network(Section):
    """Clients in other processes and on other machines (docs/field.md); nothing of it matters to a simulation."""

    costs: Literal["modelled", "measured"] = "modelled"
    """Where delays and energies come from: the simulated radio, as without real clients, or clocks and meters. With
    measured costs nothing is simulated: the cut is decided from what was measured, and only what is lost is lost."""
    memory: ShareBelowOne = 0.6
    """How much of what was measured before counts after another round; smaller follows changes faster."""
    caution: NonNegative = 0.0
    """Decide as if every link and processor were slower than estimated, by this many standard errors."""
    client_power_w: Watt = 5.0
    """What a client is taken to draw while it computes or sends, if it doesn't report its energy."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    nobody_s: Second = 300.0
    """With nobody to be reached when a round begins, the run stops after this time."""
    shaping: FileName = ""
    """A file that says how slow the stream to each client is made from which round on, for demonstrations on one
    machine; empty: it isn't."""

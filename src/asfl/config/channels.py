"""Channel and link: how strong each client's link is, and what it carries."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from asfl.config.fields import (
    Blocks,
    ClockCount,
    EachIndex,
    Exponent,
    FileName,
    Hertz,
    Meter,
    MeterPerSecond,
    OwnSettings,
    Positive,
    Section,
    Watt,
    WattPerHertz,
    known_name,
    known_settings,
)
from asfl.config.names import CHANNELS
from asfl.config.units import dbm_to_w

ChannelKind = Annotated[Literal["rayleigh", "trace", "3gpp"] | str, known_name(CHANNELS.__contains__, CHANNELS.unknown)]


class Cell(Section):
    """A cell as 3GPP TR 38.901 has it, for kind "3gpp" (extra asfl[channels]); clients walk while the clock runs."""

    model: Literal["umi", "uma", "rma"] = "umi"
    """Urban micro (server at 10 m), urban macro (25 m) or rural macro (35 m); clients are at 1.5 m."""
    carrier_hz: Hertz = 3.5e9
    """Carrier frequency; the models hold from 0.5 to 100 GHz, RMa up to 30 GHz."""
    line_of_sight: Literal["drawn", "always", "never"] = "drawn"
    """Whether a client outdoors sees the server: drawn by its distance, as in the standard, or the same for all."""
    shadowing: bool = True
    """Whether obstacles raise and lower the path gain by several dB, correlated along a way."""
    speed_mps: MeterPerSecond = 3 / 3.6
    """How fast clients walk; 3 km/h is the standard's. 0: they stand still, and so does their fading."""
    walk_m: Meter = 100.0
    """How far they walk before they turn round; at the edge of the disc they turn sooner."""

    neighbours: Literal["none", "hexagonal"] = "none"
    """Whether cells around this one raise the noise, in both directions (docs/channels.md)."""

    @model_validator(mode="after")
    def _in_the_models_range(self) -> Self:
        most = 30e9 if self.model == "rma" else 100e9
        if not 0.5e9 <= self.carrier_hz <= most:
            raise ValueError(
                f"carrier_hz = {self.carrier_hz:g} must be 5e8 … {most:g}, where the {self.model} model holds"
            )
        return self


class ChannelSettings(Section):
    """How strong each client's link is, round by round."""

    kind: ChannelKind = "rayleigh"
    """Rayleigh fading over path loss, a measured trace, or a cell of 3GPP TR 38.901; or your own: a name given to
    asfl.register_channel."""
    blocks: Literal["flat", "selective"] = "flat"
    """Whether all resource blocks of a client have the same gain, as in the paper, or each its own."""
    path_loss_exponent: Exponent = 4.0
    """How fast the path gain falls with distance: 10 dB per decade and unit of exponent."""
    trace_file: FileName = ""
    """CSV, NPZ or RENEW/Argos HDF5 file with the measurements; needed if kind is "trace"."""
    trace_quantity: Literal["auto", "gain_db", "snr_db", "rsrp_dbm"] = "auto"
    """Which measurement of a CSV or NPZ file to use; "auto" takes gains (`asfl data trace`) or SNR if there are any."""
    trace_antenna: EachIndex = 0
    """Which base-station antenna of an HDF5 file stands for the server. "each": every pair of a client's and a
    base-station antenna counts as a user, as in the paper, so that a file of few clients can play many."""
    trace_samples_per_round: ClockCount = 1
    """How many samples of the trace pass from one round to the next; "clock": as many as the rounds take time."""
    cell: Cell = Cell()
    own: OwnSettings = Field(default_factory=OwnSettings)
    """Settings of a channel of your own: what its factory takes besides (scenario, radio)."""

    @model_validator(mode="after")
    def _declared(self, info: ValidationInfo) -> Self:
        known_settings(CHANNELS, self.kind, self.own, info)
        return self


class Radio(Section):
    """The link between clients and server."""

    link: Literal["waterfall", "nr"] = "waterfall"
    """What a link carries at its SNR: Shannon's rate, with packets lost by a waterfall threshold, as in the paper; or
    5G NR, with coding schemes, block error rates and HARQ (docs/channels.md)."""
    num_rbs: Blocks = 8
    """Number of uplink resource blocks, K."""
    rb_bandwidth_hz: Hertz = 1.0e6
    """Bandwidth of one resource block, B."""
    downlink_bandwidth_hz: Hertz = 8.0e6
    """Bandwidth of the downlink, B^DN."""
    noise_psd_w_per_hz: WattPerHertz = dbm_to_w(-173.0)
    """Noise power spectral density, N₀ (−173 dBm/Hz)."""
    waterfall_threshold: Positive = 1.0
    """α in the packet error rate of the waterfall link."""
    max_tx_power_w: Watt = 1.5
    """The most a client may transmit with, P^max."""
    server_tx_power_w: Watt = 5.0
    """Transmit power of the server, p^s."""

"""The learning rate (and local steps) that suit each scheme best: a stated grid, tried on seeds of its own.

    OUT/<scheme>/<setting>/    a comparison each, with this scheme alone
    OUT/tuned.toml             the choice: a configuration, as `asfl compare` takes it

Schemes are tuned alone, so those that borrow ASFL's decisions use their stand-in for it. Seeds begin at 1001, and
accuracy is measured on training images that are held out: no comparison is tuned on the seeds and images it reports.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.config.show import changes_as_toml, toml_value
from asfl.config.tree import SchemeTraining
from asfl.results.compare import Comparison
from asfl.results.summary import Statistic, Summary
from asfl.results.sweep import Axis, Sweep, plan_sweep
from asfl.schemes import check_scheme_settings

FIRST_SEED = 1001
TUNED_FILE = "tuned.toml"
VALIDATION = 0.2
"""Share of the training images that is held out, unless the configuration says another (`data.validation`)."""
Setting = tuple[float, int]
"""Learning rate and local steps; the smaller of two is the smaller step."""


@dataclass(frozen=True)
class Tuned:
    """What was measured of one scheme."""

    scheme: str
    tried: dict[Setting, Statistic]
    """Final accuracy over the seeds; NaN if a run of this setting isn't finished."""
    default: Setting
    """What the configuration has."""

    @property
    def best(self) -> Setting | None:
        """The best mean; of equals the smallest step. None if no setting is finished."""
        finished = [setting for setting, stat in self.tried.items() if not math.isnan(stat.mean)]
        return min(finished, key=lambda setting: (-self.tried[setting].mean, setting), default=None)

    def remarks(self, setting: Setting) -> list[str]:
        """What is to be said about a setting."""
        said = ["the configuration's"] if setting == self.default else []
        if setting != self.best:
            return said
        if self._at_edge(setting):
            said.append("at the edge of the grid: try further")
        usual = self.tried.get(self.default)
        if usual is not None and setting != self.default and not math.isnan(usual.mean):
            gain = self.tried[setting].mean - usual.mean
            spread = max(0.0 if math.isnan(stat.sd) else stat.sd for stat in (self.tried[setting], usual))
            if gain <= spread:
                said.append("no further from the configuration's than the seeds are from each other")
        return ["chosen", *said]

    def _at_edge(self, setting: Setting) -> bool:
        """Whether a better setting may lie outside; fewer steps than 1 don't exist."""
        rates, steps = (sorted({one[axis] for one in self.tried}) for axis in (0, 1))
        at_end = len(rates) > 1 and setting[0] in (rates[0], rates[-1])
        return at_end or (len(steps) > 1 and (setting[1] == steps[-1] or 1 < setting[1] == steps[0]))


@dataclass(frozen=True)
class Tuning:
    """A grid for each of several schemes, in a folder."""

    folder: Path
    config: Config
    """As it is without any tuning."""
    base: str
    """The preset it starts from."""
    sweeps: dict[str, Sweep]
    """By scheme."""

    @property
    def validation(self) -> float:
        """Share of the training images with which accuracy is measured."""
        return self.comparisons[0].config.data.validation

    @property
    def comparisons(self) -> list[Comparison]:
        return [one for sweep in self.sweeps.values() for one in sweep.comparisons]

    def remember(self) -> None:
        for sweep in self.sweeps.values():
            sweep.remember()

    def measured(self) -> list[Tuned]:
        return [
            Tuned(scheme, {_setting(one, scheme): _accuracy(one) for one in sweep.comparisons}, self._default(scheme))
            for scheme, sweep in self.sweeps.items()
        ]

    def choice(self) -> str:
        """The configuration with the best setting of every scheme, as TOML."""
        best = {one.scheme: one.best for one in self.measured()}
        steps_too = any(len(sweep.axes) > 1 for sweep in self.sweeps.values())
        chosen = {
            scheme: SchemeTraining(learning_rate=setting[0], local_steps=setting[1] if steps_too else None)
            for scheme, setting in best.items()
            if setting is not None
        }
        return changes_as_toml(self.config.model_copy(update={"schemes": {**self.config.schemes, **chosen}}), self.base)

    def _default(self, scheme: str) -> Setting:
        training = self.config.for_scheme(scheme).training
        return training.learning_rate, training.local_steps


def plan_tuning(
    preset: str,
    overrides: Sequence[str],
    schemes: Sequence[str],
    learning_rates: Sequence[float],
    local_steps: Sequence[int],
    seeds: int,
    rounds: int | None,
    folder: Path,
    data_dir: Path | None = None,
) -> Tuning:
    """Check everything before anything is trained or written. Without learning rates: around the configuration's."""
    if folder.exists() and not folder.is_dir():
        raise AsflError(f"{folder} is a file; give --out the name of a folder")
    for text in overrides:
        if text.partition("=")[0].strip() == "scenario.seed":
            raise AsflError(f"--set {text} doesn't count here: tuning has seeds of its own, from {FIRST_SEED} on")
    resolved = load_config(preset, overrides)
    config = resolved.config
    check_scheme_settings(config)
    if config.data.private:
        raise AsflError(
            f"data.name = '{config.data.name}': devices keep these images, so none can be held out for tuning"
        )
    last = rounds or config.training.rounds
    for_all = [f"scenario.seed={FIRST_SEED}", f"training.rounds={last}", f"output.evaluate_every={last}"]
    for_all += [] if config.data.validation else [f"data.validation={VALIDATION}"]
    sweeps = {}
    for scheme in schemes:
        own = config.for_scheme(scheme).training.learning_rate
        rates = learning_rates or [float(f"{own * factor:.3g}") for factor in (0.3, 1, 3)]
        axes = [Axis(f"schemes.{scheme}.learning_rate", tuple(toml_value(float(rate)) for rate in rates))]
        if local_steps:
            axes.append(Axis(f"schemes.{scheme}.local_steps", tuple(map(str, local_steps))))
        sweeps[scheme] = plan_sweep(preset, [*overrides, *for_all], axes, [scheme], seeds, folder / scheme, data_dir)
    return Tuning(folder, config, resolved.preset, sweeps)


def _setting(comparison: Comparison, scheme: str) -> Setting:
    training = comparison.config.for_scheme(scheme).training
    return training.learning_rate, training.local_steps


def _accuracy(comparison: Comparison) -> Statistic:
    """Of all seeds, or of none."""
    runs = comparison.finished_runs()
    if len(runs) < comparison.num_runs:
        return Statistic.of([])
    return Summary.of(runs, []).over_seeds(comparison.schemes[0], "final_accuracy")

"""More rounds for a run that was begun with fewer: it becomes the run that had been longer from the start.

Nothing a round does depends on how many come after it, but for two things. The last round is always evaluated, and on
all test images: if the longer run evaluates that round otherwise, it is played again, from the checkpoint before it.
And total budgets (`config.budget`) are spread over all rounds: such runs can't be extended.

Files change in an order in which the folder is a whole run at any moment: first the shorter one, unfinished, then the
longer one.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.costs.decision import Decision
from asfl.costs.reserves import Reserves
from asfl.runs.finished import MODEL_SEAL
from asfl.runs.lock import writing
from asfl.runs.manifest import (
    CHECKPOINTS,
    MANIFEST_FILE,
    MODEL_FILE,
    Manifest,
    read_manifest,
    run_to_go_on_with,
    write_manifest,
)
from asfl.runs.records import Journal, read_rounds


def extend_to(folder: Path, config: Config, scheme: str, recorded: Sequence[Decision] = ()) -> int:
    """Give the run in a folder as many rounds as `config` has; how many it had, 0 if nothing had to be changed.

    Refused if it is another run in anything else. `recorded`: what ASFL decided in that world, if it was given before.
    """
    config = config.for_scheme(scheme)
    if not (folder / MANIFEST_FILE).exists() or rounds_of(read_manifest(folder)) >= config.training.rounds:
        return 0
    with writing(folder):
        manifest = read_manifest(folder)
        run_to_go_on_with(folder, with_rounds(config, rounds_of(manifest)), scheme)
        _extend(folder, manifest, config.training.rounds, tuple(recorded))
    return rounds_of(manifest)


def with_rounds(config: Config, rounds: int) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"rounds": rounds})})


def rounds_of(manifest: Manifest) -> int:
    return manifest.config.training.rounds


def _extend(folder: Path, manifest: Manifest, rounds: int, recorded: tuple[Decision, ...]) -> None:
    if Reserves.of(manifest.config) is not None:
        raise AsflError(
            f"{folder}: its total budgets are spread over {rounds_of(manifest)} rounds, so with {rounds} the first "
            "ones would have been decided otherwise; give another --out"
        )
    longer = replace(
        manifest,
        config=with_rounds(manifest.config, rounds),
        recorded=recorded if manifest.recorded else (),
        begun_with_rounds=manifest.begun_with_rounds or rounds_of(manifest),
    )
    if manifest.recorded and (len(recorded) < rounds or longer.fingerprint != manifest.fingerprint):
        raise AsflError(
            f"{folder} takes blocks and powers that ASFL decided in the same comparison, round by round; "
            "extend the comparison: asfl compare with more rounds"
        )
    last = rounds_of(manifest)
    found = read_rounds(folder, manifest.fingerprint)
    again = len(found.lines) == last and _evaluated_otherwise(manifest.config)
    if again and manifest.config.field.costs == "measured":
        raise AsflError(
            f"{folder}: its last round was evaluated as last rounds are, on all test images, and would have to be "
            "played again; but it was measured, which can't be repeated"
        )
    for name in (MODEL_SEAL, MODEL_FILE):  # the seal first: without it the rest isn't valid
        (folder / name).unlink(missing_ok=True)
    if again:
        from asfl.runs.checkpoints import checkpoint_files, remove_checkpoint

        for number, file in checkpoint_files(folder / CHECKPOINTS):
            if number >= last:
                remove_checkpoint(file)
        Journal.after(folder, found, last - 1)
    write_manifest(folder, longer)


def _evaluated_otherwise(config: Config) -> bool:
    """Whether a round that isn't the last would be evaluated on fewer images, or not at all."""
    output = config.output
    return output.test_samples > 0 or config.training.rounds % output.evaluate_every != 0

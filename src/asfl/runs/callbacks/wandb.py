"""Rounds in Weights & Biases: offline, in `wandb/` below the run folder, unless WANDB_MODE says otherwise."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from asfl.config.files import read_file
from asfl.runs.callbacks.base import Settings
from asfl.runs.callbacks.quiet import quiet
from asfl.runs.callbacks.scalars import scalars
from asfl.runs.files import write_whole
from asfl.runs.records import RoundRecord

ID_FILE = "wandb-run-id"
LONGEST_WAIT_S, LONGEST_UPLOAD_S = 30.0, 60.0
"""For a server that doesn't answer; at the end of a run, when what is left stays on the disk for `wandb sync`."""


class WeightsAndBiases:
    """One W&B run for a run folder, under the same id whenever it goes on.

    Offline, its file is written anew then and holds every round once. Online, W&B can't take a round back; rounds that
    are played again are the same, so those it has are left as they are.
    """

    _run: Any = None
    _service_is_ours = False

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        # W&B reports errors in its own code to its makers; only the user may wish that.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        mode = os.environ.get("WANDB_MODE") or "offline"
        folder = folder.absolute()
        with quiet():
            import wandb

            if mode == "offline":
                for old in folder.glob("wandb/offline-run-*"):
                    shutil.rmtree(old)
            self._service_is_ours = wandb.run is None
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "asfl",
                id=_kept_id(folder / ID_FILE),
                name=f"{folder.parent.name}/{folder.name}",
                config=dict(settings),
                dir=folder,
                mode=mode,
                resume=None if mode == "offline" else "allow",
                reinit="create_new",  # whoever calls us from Python may have a run of their own
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    init_timeout=LONGEST_WAIT_S,
                    finish_timeout=LONGEST_UPLOAD_S,
                    x_disable_machine_info=True,
                    x_disable_meta=True,
                    x_disable_stats=True,
                    x_save_requirements=False,
                ),
            )
        self._first_unknown = self._run.step
        for record in before:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        if record.round >= self._first_unknown:
            with quiet():
                self._run.log(scalars(record), step=record.round, commit=True)

    def end(self, finished: bool) -> None:
        with quiet():
            import wandb

            if self._run is not None:
                self._run.finish(exit_code=0 if finished else 1)
                self._run = None
            if self._service_is_ours:
                wandb.teardown()  # its process would stay until ours ends


def _kept_id(file: Path) -> str:
    if not file.exists():
        write_whole(file, uuid4().hex[:12].encode())
    return read_file(file, 1000).decode().strip()

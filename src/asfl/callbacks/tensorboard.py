"""Rounds as TensorBoard scalars, in `tensorboard/` below the run folder; settings on its HParams page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from asfl.callbacks.base import Settings
from asfl.callbacks.events import framed, read_records
from asfl.callbacks.scalars import scalars
from asfl.records import RoundRecord

FOLDER = "tensorboard"
_EVENT_FILE = "events.out.tfevents."


class TensorBoard:
    """One event file for each time a run is started or goes on; a later one says from which round on it counts."""

    _file: IO[bytes] | None = None

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        home = folder / FOLDER
        home.mkdir(exist_ok=True)
        shown = _rounds_in(sorted(home.glob(f"{_EVENT_FILE}*")))
        first = next((record.round for record in before if record.round not in shown), len(before) + 1)
        # TensorBoard reads the files of a folder in the order of their names.
        self._file = (home / f"{_EVENT_FILE}{time.time():.6f}.asfl").open("xb")
        self._write(file_version="brain.Event:2")
        # TensorBoard forgets what earlier files say of this round and later ones.
        self._write(step=first, session_log=SessionLog(status=SessionLog.START))
        self._write(summary=_session_start(settings))
        for record in before[first - 1 :]:
            self._write_round(record)
        self._file.flush()

    def round(self, record: RoundRecord) -> None:
        assert self._file is not None
        self._write_round(record)
        self._file.flush()

    def end(self, finished: bool) -> None:
        if self._file is not None:
            with self._file:
                if finished:
                    self._write(summary=_session_end())
            self._file = None

    def _write_round(self, record: RoundRecord) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record).items()]
        self._write(step=record.round, summary=Summary(value=values))

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        assert self._file is not None
        self._file.write(framed(Event(wall_time=time.time(), **fields).SerializeToString()))


def _rounds_in(files: Sequence[Path]) -> set[int]:
    """The rounds these files show, read as TensorBoard reads them."""
    from tensorboard.compat.proto.event_pb2 import Event

    rounds: set[int] = set()
    for event in (Event.FromString(data) for file in files for data in read_records(file)):
        if event.HasField("session_log"):
            rounds = {number for number in rounds if number < event.step}
        elif event.step:
            rounds.add(event.step)
    return rounds


def _session_start(settings: Settings) -> Any:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    info = SessionStartInfo(start_time_secs=time.time())
    for name, value in settings.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
        else:
            info.hparams[name].number_value = value
    return _of_hparams_page("session_start_info", HParamsPluginData(session_start_info=info))


def _session_end() -> Any:
    from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _of_hparams_page("session_end_info", HParamsPluginData(session_end_info=info))


def _of_hparams_page(tag: str, data: Any) -> Any:
    """A summary that carries everything in its metadata, and no numbers."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_FLOAT

    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
    nothing = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    return Summary(
        value=[Summary.Value(tag=f"_hparams_/{tag}", metadata=SummaryMetadata(plugin_data=plugin), tensor=nothing)]
    )

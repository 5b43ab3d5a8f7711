"""TensorBoard's own readers find every round once, with the numbers of rounds.jsonl."""

from pathlib import Path

import numpy as np
import pytest
from made_up import made_up_round
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tracked_runs import ROUNDS, lose_newest_checkpoint, play, stopped_and_resumed

from asfl.runs.callbacks import Tracking, scalars, tensorboard as tracker
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import resume

# On a full disk the writer's own thread fails too, perhaps after the test; pytest would blame the next one.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def shown(reader: EventAccumulator) -> dict[str, list[ScalarEvent]]:
    reader.Reload()
    return {name: reader.Scalars(name) for name in reader.Tags()["scalars"]}


def of_folder(folder: Path) -> dict[str, list[ScalarEvent]]:
    return shown(EventAccumulator(str(folder / "tensorboard")))


def assert_same(events: dict[str, list[ScalarEvent]], records: list[RoundRecord]) -> None:
    """The same names, each with the same rounds and values; TensorBoard keeps single precision."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in scalars(record).items():
            expected.setdefault(name, []).append((record.round, float(np.float32(value))))
    assert {name: [(event.step, event.value) for event in found] for name, found in events.items()} == expected


def steps(file: Path) -> list[int]:
    """The rounds in one file, as far as it can be read."""
    events = LegacyEventFileLoader(str(file)).Load()
    return list(dict.fromkeys(event.step for event in events if event.HasField("summary") and event.step))


def event_files(folder: Path) -> list[Path]:
    return sorted((folder / "tensorboard").iterdir())


def test_every_round_once_after_a_resume_that_replays(tmp_path: Path) -> None:
    records = stopped_and_resumed(tmp_path / "run", "tensorboard")
    assert_same(of_folder(tmp_path / "run"), records)
    assert [steps(file) for file in event_files(tmp_path / "run")] == [[1, 2, 3], [3, 4]]


def test_a_tensorboard_that_is_open_follows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    play(folder, "tensorboard", rounds=3)
    reader = EventAccumulator(str(folder / "tensorboard"))
    before = shown(reader)
    assert [event.step for event in before["cost/delay_s"]] == [1, 2, 3]
    lose_newest_checkpoint(folder)
    resume(folder)
    after = shown(reader)
    assert [event.step for event in after["cost/delay_s"]] == [1, 2, 3, 4]
    kept = [event.wall_time for event in before["cost/delay_s"]][:2]
    assert [event.wall_time for event in after["cost/delay_s"]][:2] == kept  # when they were really played


def test_rounds_that_were_missed_are_made_up_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the folder should be: the tracker fails, the run doesn't; later there is room."""
    folder = tmp_path / "run"
    play(folder, "none", rounds=1)
    (folder / "tensorboard").touch()
    play(folder, "tensorboard", rounds=2)
    assert "warning: TensorBoard is switched off" in capsys.readouterr().err
    (folder / "tensorboard").unlink()
    play(folder, "tensorboard", rounds=ROUNDS)
    assert_same(of_folder(folder), read_records(folder))


def test_a_full_disk_in_mid_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    tracking = Tracking([tracker.TensorBoard()])
    tracking.begin(tmp_path, {}, [])
    (file,) = event_files(tmp_path)
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    full.replace(file)  # at once: the writer's thread may open the file by its name at any time
    for number in (1, 2):
        tracking.round(made_up_round(number))
    tracking.end(True)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "TensorBoard is switched off" in warnings[0]
    assert "No space left" in warnings[0]


def test_a_torn_file_is_read_up_to_the_tear(tmp_path: Path) -> None:
    rounds = [made_up_round(number, 0.5) for number in (1, 2, 3)]
    board = tracker.TensorBoard()
    board.begin(tmp_path, {}, rounds)
    board.end(False)
    (file,) = event_files(tmp_path)
    whole = file.read_bytes()
    last = list(of_folder(tmp_path))[-1]
    for torn in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], whole[:-30]):
        file.write_bytes(torn)
        assert [event.step for event in of_folder(tmp_path)[last]] == [1, 2]
    board.begin(tmp_path, {}, rounds)  # round 3 is known, and a part of it was lost on its way to the file
    board.round(made_up_round(4, 0.6))
    board.end(True)
    assert_same(of_folder(tmp_path), [*rounds, made_up_round(4, 0.6)])
    assert [steps(file) for file in event_files(tmp_path)] == [[1, 2, 3], [3, 4]]


def test_settings_are_on_the_hparams_page(tmp_path: Path) -> None:
    board = tracker.TensorBoard()
    board.begin(tmp_path, {"scheme": "asfl", "seed": 3, "data.augment": True, "training.learning_rate": 0.5}, [])
    board.end(True)
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    content = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["scheme"].string_value == "asfl"
    assert hparams["seed"].number_value == 3
    assert hparams["data.augment"].string_value == "true"
    assert hparams["training.learning_rate"].number_value == 0.5
    assert "_hparams_/session_end_info" in reader.PluginTagToContent("hparams")

"""What `asfl.run` and `asfl.compare` return: the runs of a folder as tables, words, pictures and a page."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asfl.config.errors import AsflError
from asfl.config.units import percent
from asfl.results.charts.files import as_png, draw, save_figure
from asfl.results.charts.runs import accuracy
from asfl.results.curves import RunFolder, read_run, run_folders
from asfl.results.frames import load_runs
from asfl.results.summary import Summary
from asfl.results.tables import in_words, tables_of
from asfl.runs.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Results:
    """The runs of a folder: of one scheme, or of a comparison. A notebook shows them as tables and a picture."""

    folder: Path
    finished: bool = True
    """False: stopped by Ctrl-C; the same call goes on."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why runs of a comparison failed, by name."""

    @property
    def rounds(self) -> "pd.DataFrame":
        """One row per round and run; columns as in rounds.jsonl. Needs `pip install 'asfl[report]'`."""
        return load_runs(self.folder)

    @property
    def summary(self) -> "pd.DataFrame":
        """One row per run: its accuracy, and what it took."""
        return load_runs(self.folder, per="run")

    @property
    def words(self) -> list[str]:
        """What came out, in sentences."""
        return in_words(self._summary)

    def plot(self, against: Literal["delay", "energy", "rounds"] = "delay", file: str | Path | None = None) -> "Figure":
        """Accuracy against delay, energy or rounds: a Matplotlib figure; also into a .png, .svg or .pdf file."""
        if against not in ("delay", "energy", "rounds"):
            raise AsflError(f"plot against '{against}': valid: delay, energy, rounds")
        chart = accuracy(self._runs, against, self._summary.targets)
        figure = draw(chart)
        if file is not None:
            save_figure(figure, Path(file))
        return figure

    def report(self, file: str | Path | None = None) -> Path:
        """Write everything as one HTML page and say where: `report.html` in the folder, or the given file."""
        from asfl.results.page import Report, page, place_for

        path = place_for([self.folder], None if file is None else Path(file))
        write_whole(path, page(Report.of([self.folder])))
        return path

    @cached_property
    def _runs(self) -> list[RunFolder]:
        return [read_run(folder) for folder in run_folders([self.folder])]

    @cached_property
    def _summary(self) -> Summary:
        return Summary.of(self._runs)

    def __repr__(self) -> str:
        runs = [f"  {run.name}: {_state(run)}" for run in self._runs]
        return "\n".join(
            [f"Results in {self.folder}{'' if self.finished else ' (stopped: call again to go on)'}", *runs]
        )

    def _repr_html_(self) -> str:
        """For notebooks."""
        tables = "".join(table.html() for table in tables_of(self._summary))
        words = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.words)
        failed = "".join(f"<p><b>{escape(name)} failed</b>: {escape(why)}</p>" for name, why in self.failed.items())
        content = b64encode(as_png(self.plot())).decode()
        picture = f'<img alt="accuracy against delay" src="data:image/png;base64,{content}">'
        return f"<p><code>{escape(str(self.folder))}</code></p>{failed}{words}{picture}{tables}"


def _state(run: RunFolder) -> str:
    accuracies = [record.accuracy for record in run.records if record.accuracy is not None]
    reached = f", {percent(accuracies[-1], 1)} accuracy" if accuracies else ""
    return f"{run.progress}{reached}"

"""The notebook of the documentation runs, and what is saved in it is what it shows.

To save it anew: `jupyter execute --inplace docs/notebook.ipynb`.
"""

import base64
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
FULL_LENGTH = "training.rounds=20"


def outputs(notebook: Any) -> list[list[list[str]]]:
    """By code cell: what kinds of output it has. Numbers may differ in the last digits from machine to machine."""
    return [
        [[output["output_type"], *sorted(output.get("data", {}))] for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.fixture
def saved() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def test_the_notebook_runs_and_shows_what_is_saved(saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "TMPDIR"):
        folder = tmp_path / variable.lower()
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))  # nobody's own kernels, settings or history
    fresh = deepcopy(saved)
    training = fresh["cells"][2]
    assert FULL_LENGTH in training["source"]
    training["source"] = training["source"].replace(FULL_LENGTH, "training.rounds=2")  # the same kinds of output
    here = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(fresh, timeout=1200, kernel_name="python3", resources=here).execute()
    assert outputs(fresh) == outputs(saved)
    assert not list(tmp_path.rglob("manifest.json"))  # it tidies up


def test_what_is_saved_is_small_and_of_one_piece(saved: Any) -> None:
    cells = [cell for cell in saved["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    every = [output for cell in cells for output in cell["outputs"]]
    pictures = [output["data"]["image/png"] for output in every if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert max(len(base64.b64decode(picture)) for picture in pictures) < 60_000
    assert "/tmp" not in str([output.get("data", {}).get("text/plain", "") for output in every])


def test_from_runs_to_a_plot_in_three_lines(saved: Any) -> None:
    (lines,) = [cell["source"].splitlines() for cell in saved["cells"] if ".plot(ylabel=" in cell["source"]]
    assert len(lines) == 3
    assert "load_runs" in lines[0]

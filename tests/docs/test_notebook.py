"""The notebook of the documentation runs, and what is saved in it is what it shows.

To save it anew: `jupyter execute --inplace docs/notebook.ipynb`.
"""

import base64
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from made_up import leave_run, made_up_round
from nbclient import NotebookClient

from asfl.config import load_config
from asfl.costs.world import Budgets
from asfl.runs.manifest import Manifest

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


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a client whose kernel works in the test's folder, without this user's kernels, settings or history."""
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "TMPDIR"):
        folder = tmp_path / variable.lower()
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    return {"timeout": 1200, "kernel_name": "python3", "resources": {"metadata": {"path": str(tmp_path)}}}


def test_the_notebook_runs_and_shows_what_is_saved(saved: Any, tmp_path: Path, kernel: dict[str, Any]) -> None:
    fresh = deepcopy(saved)
    training = fresh["cells"][2]
    assert FULL_LENGTH in training["source"]
    shorter = training["source"].replace(FULL_LENGTH, "training.rounds=1").replace("(1, 2, 3)", "(1,)")
    training["source"] = shorter  # the same kinds of output
    NotebookClient(fresh, **kernel).execute()
    assert outputs(fresh) == outputs(saved)
    assert not list(tmp_path.rglob("manifest.json"))  # it tidies up


def test_a_figure_shows_itself_once(tmp_path: Path, kernel: dict[str, Any]) -> None:
    """However much a notebook knows of Matplotlib; a figure that is kept isn't shown."""
    manifest = Manifest(load_config("demo").config, "asfl", Budgets(1, 1), 1, {})
    leave_run(tmp_path / "run", manifest, [made_up_round(1, 0.5)])
    begin = "from pathlib import Path\nimport asfl\nmade = asfl.Results(Path('run'))\nkept = made.plot()"
    cells = [begin, "made.plot()", "import matplotlib.pyplot\nmade.plot()", "%matplotlib inline\nmade.plot()"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call]
    NotebookClient(book, **kernel).execute()
    assert outputs(book) == [[]] + 3 * [[["execute_result", "image/png", "text/plain"]]]
    texts = [output["data"]["text/plain"] for cell in book["cells"] for output in cell["outputs"]]
    assert all(re.fullmatch(r"<Figure size \d+x\d+ with 1 Axes>", text) for text in texts)


def test_what_is_saved_is_small_and_of_one_piece(saved: Any) -> None:
    cells = [cell for cell in saved["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    data = [output.get("data", {}) for cell in cells for output in cell["outputs"]]
    sizes = [len(base64.b64decode(one["image/png"])) for one in data if "image/png" in one]
    assert len(sizes) == 3
    assert max(sizes) < 60_000

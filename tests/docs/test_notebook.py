"""The notebook of the documentation runs, and what is saved in it is what it shows.

To save it anew: `jupyter execute --inplace docs/notebook.ipynb`.
"""

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

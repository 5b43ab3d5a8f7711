"""Which tests go to one process together (pytest-xdist), and in which order."""

from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

RAY = ("tests/runs/test_ray.py", "tests/field/test_ray_clients.py")
"""These share a cluster."""
LONGEST = (
    *RAY, "tests/field/test_fleet.py", "tests/train/test_fast_equals_plain.py", "tests/docs/test_pages.py",
    "tests/results/reproduce/test_recipes.py", "tests/runs/test_run.py", "tests/runs/test_compare.py",
    "tests/docs/test_readme.py", "tests/field/test_same_bits.py", "tests/runs/test_folder.py",
    "tests/field/test_bad_answers.py", "tests/field/test_faults.py",
    "tests/schemes/test_decide.py", "tests/docs/test_notebook.py", "tests/test_wheel.py",
)  # fmt: skip
"""They begin first: what is long and begins last, the other processes wait for."""


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def longest_first(item: "pytest.Item") -> int:
    """A key to sort tests by."""
    file = _file_of(item.nodeid)
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


class FileByFile(LoadScopeScheduling):  # type: ignore[misc]
    """All tests of a file in one process, so that what its fixtures start is started once.

    Marks would say so too (`xdist_group`), but xdist 3.8 doesn't notice them with pytest 9: each process then had a Ray
    cluster of its own.
    """

    def __init__(self, config: "pytest.Config", log: "Producer | None" = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = _file_of(nodeid)
        return "ray" if file in RAY else file

"""What is published is what was found: pages, an index, and a sentence in the README."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from made_up import made_up_run

from asfl.results.reproduce.archive import Found, Point
from asfl.results.reproduce.page import show_found

README = "# title\n\n<!-- tools/publish_results.py: begin -->\nold\n<!-- end -->\n\nrest\n"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    file = Path(__file__).parents[3] / "tools" / "publish_results.py"
    spec = importlib.util.spec_from_file_location("publish_results", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_index_and_readme(tool: ModuleType, tmp_path: Path) -> None:
    climbing = [0.2, 0.4, 0.6, 0.6, 0.6, 0.6]
    runs = [
        *(made_up_run("asfl-plus", climbing, seed=seed, delay_s=1.0, energy_j=2.0) for seed in (1, 2)),
        *(made_up_run("asfl", climbing, seed=seed, delay_s=7.0, energy_j=5.0) for seed in (1, 2)),
        *(made_up_run("sfl-best", climbing, seed=seed, delay_s=3.0, energy_j=9.0) for seed in (1, 2)),
        *(made_up_run("epsl", [0.1] * 6, seed=seed, delay_s=0.1, energy_j=0.1) for seed in (1, 2)),
    ]
    found = Found("accuracy-delay-energy", "asfl reproduce …", [Point("vgg19-cifar10", "", "world", runs)])
    show_found(found, tmp_path / "found" / found.recipe)
    docs, readme = tmp_path / "docs", tmp_path / "README.md"
    readme.write_text(README)
    tool.publish(tmp_path / "found", docs, readme)

    page, index = ((docs / name).read_text("utf-8") for name in ("accuracy-delay-energy.md", "index.md"))
    for text in (page, index):  # every picture that a page shows is there
        named = [line.rpartition("(")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
        assert named
        assert all((docs / name).is_file() for name in named)
    # By the mean of the last three evaluations 55 % is reached in round 5 … of 6, wherever that is in seconds.
    said = readme.read_text("utf-8")
    assert said.startswith("# title\n")
    assert said.endswith("<!-- end -->\n\nrest\n")
    assert "old" not in said
    for text in (index, said):
        words = " ".join(text.split())
        assert "`asfl-plus` needs 5 s and" in words
        assert "the fastest other scheme, `sfl-best`, 15 s; the thriftiest, `asfl`" in words
        assert "`epsl` 10.0 %" in words
        assert "After 6 rounds: `asfl-plus` 60.0 % (6 s)" in words
    tool.publish(tmp_path / "found", docs, readme)  # again: nothing changes
    assert readme.read_text("utf-8") == said

    # Where a comparison goes on for longer, all schemes end there.
    runs = [made_up_run("asfl-plus", [0.7] * 4, delay_s=1.0), made_up_run("asfl", [0.6] * 8, delay_s=10.0)]
    longer = Found("more-rounds", "asfl reproduce …", [Point("vgg19-cifar10", "", "world", runs)])
    show_found(longer, tmp_path / "found" / longer.recipe)
    tool.publish(tmp_path / "found", docs, readme)
    words = " ".join(readme.read_text("utf-8").split())
    assert "`asfl-plus` needs 5 s and" in words
    assert "In the end: `asfl-plus` 70.0 % (4 rounds, 4 s), `asfl` 60.0 % (8 rounds, 80 s)." in words


def test_a_claim_about_the_same_runs_counts_once(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asfl.results.reproduce.page.save_figure", lambda *_: None)
    runs = [made_up_run(name, [0.5, 0.6], seed=seed) for name in ("asfl-plus", "asfl") for seed in (1, 2, 3)]
    headline = Found("accuracy-delay-energy", "…", [Point("vgg19-cifar10", "", "vgg19-cifar10", runs)])
    mixes = Found("label-mix", "…", [Point("vgg19-cifar10", "1", "vgg19-cifar10", runs)])
    data = [show_found(found, tmp_path / found.recipe)[2] for found in (headline, mixes)]
    both = {found.recipe: one for found, one in zip((headline, mixes), data, strict=True)}
    first, second = (tool._each_once(both)[name] for name in both)
    assert len(first) == len(data[0]["findings"])
    assert 0 < len(second) < len(data[1]["findings"])
    assert {one["about"] for one in first}.isdisjoint({one["about"] for one in second})
    index = "\n".join(tool._index(both, "", tmp_path))
    assert f"holds {sum(one['verdict'] == 'holds' for one in [*first, *second])}" in index.partition("In all: ")[2]


def test_without_another_scheme_no_sentence_is_made(tool: ModuleType, tmp_path: Path) -> None:
    found = Found("accuracy-delay-energy", "", [Point("demo", "", "world", [made_up_run("asfl", [0.5, 0.5])])])
    assert tool.sentence(show_found(found, tmp_path)[2]) == ""

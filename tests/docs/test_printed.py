"""`tools/printed.py`: what documents show is found, run again, compared and written."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

ROOT = Path(__file__).parents[2]
tool = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "printed.py")))

PAGE = """Text.

```console
$ asfl one \\
    --more x
alpha 1.00, decided in 7 ms
…
omega 3
$ asfl two
$ asfl three
$ pip install
```

``` {.python title="a"}
not shown
```

```python
x = 2
print(x)
```

```text
2
```

`asfl draw --plot out/there.png` and `asfl list`
"""


def test_commands_and_python_are_found_with_what_is_shown() -> None:
    one, two, three, other = tool.commands("page", PAGE)
    assert (one.source, one.lines) == ("asfl one --more x", ("alpha 1.00, decided in 7 ms", "…", "omega 3"))
    assert PAGE.split("\n")[one.line] == one.lines[0]
    assert [shown.lines for shown in (two, three, other)] == [(), (), ()]
    last = tool.python("page", PAGE)[-1]
    assert (last.source, last.lines) == ("x = 2\nprint(x)", ("2",))
    assert dict(tool.drawing(PAGE)) == {"there.png": "asfl draw --plot out/there.png"}


def test_a_difference_is_found_and_written_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {"asfl one --more x": "alpha 1.001, decided in 90 s\nbeta\nomega 3"}
    monkeypatch.setitem(tool.run_page.__globals__, "call", lambda command, place: printed[command])
    monkeypatch.setitem(tool.run_page.__globals__, "run", lambda words, place: "\0".join(["2\n"]))
    text = PAGE.replace("in 7 ms", "in …")  # how long it took is not to be shown
    assert tool.differences("page", text, tmp_path) == []
    ((shown, now),) = tool.differences("page", PAGE, tmp_path)
    assert tool.rewritten(PAGE, [(shown, now)]) == text.replace("1.00,", "1.001,")
    printed["asfl one --more x"] = "alpha 1.00, decided in 1 s\nbeta\nomega 4"
    differing = tool.differences("page", text, tmp_path)
    assert tool.rewritten(text, differing) == text.replace("omega 3", "omega 4")
    printed["asfl one --more x"] = "error: no such thing"
    with pytest.raises(tool.NotShownError, match="page:5: `asfl one --more x` prints 1 lines only"):
        tool.differences("page", text, tmp_path)


lines = st.lists(st.text("abc 123.", max_size=5).map(lambda text: f"x{text}"), min_size=1, max_size=8)


@given(lines, st.data())
def test_what_is_printed_is_told_again_as_it_is_shown(printed: list[str], data: Any) -> None:
    """Shown in full, or with a gap anywhere: telling it again changes nothing."""
    begin = data.draw(st.integers(0, len(printed)))
    end = data.draw(st.integers(begin, len(printed)))
    assert tool.told_again(printed, printed) == printed
    gap = [*printed[:begin], "…", *printed[end:]]
    assert tool.told_again(gap, printed) == gap


def test_what_is_not_run_and_not_drawn_is_shown() -> None:
    texts = {file.name: file.read_text("utf-8") for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    drawn = {name for text in texts.values() for name, _ in tool.drawing(text)}
    assert {*tool.NOT_DRAWN} <= {file.name for file in (ROOT / tool.IMAGES).iterdir()} <= drawn | {*tool.NOT_DRAWN}
    every = [shown for page, text in texts.items() for shown in tool.commands(f"docs/{page}", text) if shown.lines]
    assert all(shown.source.startswith(("asfl ", *tool.NOT_RUN)) for shown in every)
    for page, words in [*tool.BEFORE, *(("", words) for words in tool.NOT_RUN)]:
        assert any(page in shown.page and shown.source.startswith(words) for shown in every), words

"""Tables for a paper: booktabs, every special character tamed."""

import re
from pathlib import Path

from made_up import made_up_run
from run_folders import comparison_folder

from asfl.results.page import Report
from asfl.results.summary import Summary
from asfl.results.tables import Table, escape_latex, latex_tables, tables_of


def test_numbers_with_their_spread(tmp_path: Path) -> None:
    text = latex_tables(Report.of([comparison_folder(tmp_path / "both")]).tables)
    same = "61.5 [61.0, 62.0]"  # seeds at 61 and 62 %: the median, and both of them
    assert f"asfl & {same} & {same} & {same} & {same} & -- & 30.8 [30.5, 31.0] & 2 " + r"\\" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 6
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 6
    assert text.count("{") == text.count("}")
    for line in re.findall(r"^    .* \\\\$", text, re.MULTILINE):
        assert re.search(r"(?<!\\)%", line) is None  # would comment the rest out
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert labels == [f"tab:asfl-{key}" for key in ("accuracy", "delay", "energy", "savings", "costs", "rounds")]


def test_not_reached_and_one_seed() -> None:
    runs = [made_up_run("asfl", [0.1, 0.6]), made_up_run("sfl", [0.1, 0.2])]
    delay = next(table for table in tables_of(Summary.of(runs, [0.3])) if table.key == "delay")
    assert delay.rows == [["asfl", "4"], ["sfl", "not reached"]]
    text = latex_tables([delay])
    assert r"sfl & \emph{not reached} \\" in text
    assert r"$\pm$" not in text
    assert "One seed" in text


def test_special_characters() -> None:
    table = Table(key="a", title="50 % (rate_1)", header=["x_1", "y"], rows=[["a&b", "−1 ± 2"]])
    text = latex_tables([table])
    assert r"\caption{50 \% (rate\_1). }" in text
    assert r"a\&b & $-$1 $\pm$ 2 \\" in text
    assert escape_latex(r"\input{x}~^<>") == (
        r"\textbackslash{}input\{x\}\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}"
    )

"""The page "From the papers": every class, parameter, test and benchmark that it names exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tools import canaries

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "from_the_papers.md").read_text(encoding="utf-8")
MODULES = (
    "skdp", "skdp.decomposition", "skdp.federated", "skdp.graph", "skdp.papers",
    "skdp.recommend", "skdp.regression", "skdp.testing", "skdp.theory",
)  # fmt: skip
NAMES = {
    name: getattr(module, name)
    for module in map(importlib.import_module, MODULES)
    for name in module.__all__
} | {"canaries": canaries}
PAPERS = ("Zha", "Upadhyay", "Jain", "Nicolas", "Hardt, Roth")


def rows():
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "system":
            yield pytest.param(cells, id=cells[0])


def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_all_five_papers_have_a_table():
    parts = PAGE.split("\n## ")[1:]
    assert len(parts) == len(PAPERS)
    for author, part in zip(PAPERS, parts, strict=True):
        assert part.split("\n\n")[1].startswith(author)
        assert part.count("\n| ") >= 7


@pytest.mark.thorough
@pytest.mark.parametrize("cells", list(rows()))
def test_what_the_page_names_exists(cells):
    _, ours, printed, test, benchmark = cells
    for name in code(ours) + code(printed):
        eval(name, dict(NAMES))  # a class, or one with parameters that it has
    assert code(ours) or "none is needed" in ours
    (test,) = code(test)
    path, _, function = test.partition("::")
    assert (ROOT / path).is_file()
    assert not function or function in functions(ROOT / path)
    if benchmark == "the test":  # which compares with simulation
        assert path.startswith("tests/theory")
        return
    module, _, section = code(benchmark)[0].partition(" ")
    path = ROOT / "benchmarks" / f"{module}.py"
    assert path.is_file()
    assert not section or section in functions(path)


def test_the_page_is_in_the_navigation():
    more = (ROOT / "docs" / "more.md").read_text(encoding="utf-8")
    assert "\nfrom_the_papers\n" in more
    guide = (ROOT / "docs" / "user_guide" / "index.md").read_text(encoding="utf-8")
    assert "(../from_the_papers.md)" in guide

"""The page "From the papers": every class, parameter and test that it names exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tools import canaries
from tools.ways import FACES

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "from_the_papers.md").read_text(encoding="utf-8")
NAMES = {
    name: getattr(module, name)
    for module in map(importlib.import_module, ["skdp", *FACES])
    for name in module.__all__
} | {"canaries": canaries}
PAPERS = (
    "Zha 2024", "Upadhyay 2018", "Jain et al. 2021", "Nicolas et al. 2024", "Hardt, Roth 2013",
)  # fmt: skip


def rows():
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[3].startswith("`tests/"):
            yield pytest.param(cells, id=cells[0])


def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_all_five_papers_have_rows():
    parts = re.split(r"^\| \*\*(.*?)\*\* \|", PAGE, flags=re.MULTILINE)[1:]
    assert tuple(parts[::2]) == PAPERS
    assert min(part.count("\n| ") for part in parts[1::2]) >= 7
    assert PAGE.count("\n- ", PAGE.index("\n## References")) == len(PAPERS)


@pytest.mark.thorough
@pytest.mark.parametrize("cells", list(rows()))
def test_what_the_page_names_exists(cells):
    _, ours, printed, test = cells
    for name in code(ours) + code(printed):
        eval(name, dict(NAMES))  # a class, or one with parameters that it has
    assert code(ours) or ours.startswith("none")
    (test,) = code(test)
    path, _, function = test.partition("::")
    assert (ROOT / path).is_file()
    assert not function or function in functions(ROOT / path)

"""The Python blocks of the documentation run, page by page; links between files lead somewhere."""

import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from tools.ways import FACES

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [page for page in PAGES if not {"_build", "auto_examples"} & set(page.parts)]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
MARKDOWN = [*PAGES, *sorted(ROOT.glob("*.md"))]
# Its blocks are files of the package; it has a test of its own below.
ELSEWHERE = {"docs/writing_a_new_estimator.md"}


def python_blocks(page):
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def shown_outputs(page):
    """Return what the page says that each Python block prints; None where it says nothing."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    shown = []
    for language, body in fences:
        if language == "python":
            shown.append(None)
        elif language == "text" and shown and shown[-1] is None:
            shown[-1] = body
    return shown


# Lines of plans and cards without noise: exact. In others numbers may differ, as noise does.
EXACT = ("Plan", "Guarantee", "Unit", "Adjacency", "mu ", "rho ", "Budget epsilon", "Half as much")


def without_noise(text):
    """Return the lines of an output with numbers that noise may have touched left out.

    Alike lines that follow each other are one: noise may decide how often something is asked.
    """
    lines = []
    for line in text.rstrip().splitlines():
        if not line.startswith(EXACT):
            line = re.sub(r"-?\d+\.?\d*(e[+-]?\d+)?", "#", line)
        lines.append(" ".join(line.split()).replace("[ ", "[").replace(" ]", "]"))
    return [line for line, _ in itertools.groupby(lines)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ELSEWHERE])
def test_code_of_the_page_runs_and_prints_what_it_says(name, tmp_path, monkeypatch, capsys):
    blocks, shown = python_blocks(ROOT / name), shown_outputs(ROOT / name)
    if not blocks:
        pytest.skip("no code on this page")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    capsys.readouterr()
    # some pages show what warns
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        for number, (code, output) in enumerate(zip(blocks, shown, strict=True)):
            exec(compile(code, f"{name}, block {number}", "exec"), namespace)
            printed = capsys.readouterr().out
            if output is not None:
                assert without_noise(printed) == without_noise(output), f"block {number}"


def test_pages_are_found():
    assert len(PAGES) > 10
    assert sum(len(python_blocks(page)) for page in PAGES) > 20


def test_a_source_of_rows_takes_twenty_lines():
    for block in python_blocks(ROOT / "docs" / "user_guide" / "outgrowing_one_machine.md"):
        for body in re.findall(r"class \w+:\n(.*?)\n\n\n", block, re.DOTALL):
            assert len(body.splitlines()) <= 20


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)", text)
    built = "auto_examples"  # made when the site is built
    missing = [t for t in targets if built not in t and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("module", ["skdp", *FACES, "skdp.privacy"])
def test_every_public_name_is_in_the_reference(module):
    text = (ROOT / "docs" / "api" / "index.rst").read_text(encoding="utf-8")
    listed = {line.rpartition(".")[2] for line in text.split() if line.startswith("skdp.")}
    found = importlib.import_module(module)
    modules = {name for name in found.__all__ if isinstance(getattr(found, name), ModuleType)}
    assert set(found.__all__) - modules - listed == set()


def test_the_reference_lists_what_exists():
    text = (ROOT / "docs" / "api" / "index.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^   (skdp\.\S+)$", text, flags=re.MULTILINE)
    assert len(listed) == len(set(listed)) > 100
    for name in listed:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__


# A page of the guide has these headings, in this order; others may stand between them.
PARTS = [
    "When to use it", "Example", "Main parameters", "Reading the result", "Privacy guarantee",
    "Running time",
]  # fmt: skip
GUIDE = [p for p in sorted((ROOT / "docs" / "user_guide").glob("*.md")) if p.stem != "index"]
HOW_IT_WORKS = sorted((ROOT / "docs" / "how_it_works").glob("*.md"))


def without_code(page):
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^(```|:::).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(page):
    return re.findall(r"^## (.*)$", without_code(page), flags=re.MULTILINE)


# What is elsewhere is included; the page of benchmarks is made by a program.
TASKS = [p for p in sorted((ROOT / "docs").glob("*.md")) if p.stem != "benchmarks"]
PLAIN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *TASKS, *GUIDE, *HOW_IT_WORKS]


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_every_user_guide_page_has_all_parts(page):
    assert [h for h in headings(page) if h in PARTS] == PARTS
    assert headings(page)[:2] == PARTS[:2], "when to use it, and then an example"
    assert shown_outputs(page)[:2] != [None, None], "the example shows what it prints"
    assert "(../how_it_works/" in without_code(page), "a link for those who audit"


def sentences(page):
    """Return the sentences of a page: no code, tables, headings or references."""
    text = re.sub(r"^## References\n.*", "", without_code(page), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#|\||\().*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    parts = (re.split(r"(?<=[.?!])[)*_\"]*\s+(?=[^a-z])", " ".join(b.split())) for b in blocks)
    return [part for each in parts for part in each if part]


LONGEST = 25  # words of a sentence


# Words that readers outside the project did not understand, and metaphors.
UNPLAIN = re.compile(
    r"\b(beside|rungs?|tastes?|octaves?|coins?|receipts? says|looks? (at|like)|sees|tells|told"
    r"|simply|of course|readable|shouts?|glasses|doubts?|restricted|energy|the likes? of)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short_and_words_plain(page):
    long = [s for s in sentences(page) if len(re.findall(r"[^\W_]\S*", s)) > LONGEST]
    assert long == []
    text = re.sub(r"`[^`]*`|\]\([^)\s]*\)", "", without_code(page))
    assert [found[0] for found in UNPLAIN.finditer(text)] == []


@pytest.mark.parametrize("page", [*GUIDE, *HOW_IT_WORKS], ids=str)
def test_every_page_is_on_the_map_of_its_folder(page):
    index = (page.parent / "index.md").read_text(encoding="utf-8")
    assert page.stem == "index" or f"({page.name})" in index


@pytest.mark.deep
def test_the_files_of_the_guide_are_all_that_an_estimator_needs(tmp_path):
    """In a copy of the package, where its own tests and the common ones find it."""
    for folder in ("skdp", "tests", "docs"):
        unwanted = shutil.ignore_patterns("__pycache__", "_build", "auto_examples")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    page = (ROOT / "docs" / "writing_a_new_estimator.md").read_text(encoding="utf-8")
    files = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    for path, code in files:
        (tmp_path / path).write_text(code, encoding="utf-8")
    index = tmp_path / "docs" / "api" / "index.rst"
    (line,) = re.findall(r"^```rst\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    other = "   skdp.preprocessing.DPStandardScaler\n"
    index.write_text(index.read_text(encoding="utf-8").replace(other, line + other))
    assert len(files) + 1 == 6
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0",
         "tests/preprocessing/test_column_means.py", "tests/test_layers.py", "tests/test_links.py",
         "tests/test_docs.py", "tests/test_dp_common.py",
         "-k", "column_means or ColumnMeans or layers or reference"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280,
        env={name: value for name, value in os.environ.items() if name != "SKDP_INSTALLED"}
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'tests'}", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", found.stdout)[1]) > 60

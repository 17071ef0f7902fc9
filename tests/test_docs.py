"""The Python blocks of the documentation run, page by page; links between files lead somewhere."""

import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import skdp
from skdp.exceptions import PrivacyWarning

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [page for page in PAGES if not {"_build", "auto_examples"} & set(page.parts)]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
MARKDOWN = [*PAGES, *sorted(ROOT.glob("*.md"))]
# Blocks that are saved as modules, and so run in a test of their own.
ELSEWHERE = {"docs/writing_a_new_estimator.md"}


def python_blocks(page):
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ELSEWHERE])
def test_code_of_the_page_runs(name, tmp_path, monkeypatch):
    blocks = python_blocks(ROOT / name)
    if not blocks:
        pytest.skip("no code on this page")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # some pages show what warns
        for number, code in enumerate(blocks):
            exec(compile(code, f"{name}, block {number}", "exec"), namespace)


def test_pages_are_found():
    assert len(PAGES) > 10
    assert sum(len(python_blocks(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)", text)
    built = "auto_examples"  # made when the site is built
    missing = [t for t in targets if built not in t and not (page.parent / t).exists()]
    assert missing == []


def test_every_public_class_is_in_the_reference():
    text = (ROOT / "docs" / "api" / "index.rst").read_text(encoding="utf-8")
    listed = {line.rpartition(".")[2] for line in text.split() if line.startswith("skdp.")}
    modules = {name for name in skdp.__all__ if isinstance(getattr(skdp, name), ModuleType)}
    assert set(skdp.__all__) - modules - listed == set()


def test_every_user_guide_page_is_in_the_table():
    folder = ROOT / "docs" / "user_guide"
    index = (folder / "index.md").read_text(encoding="utf-8")
    names = {page.name for page in folder.glob("*.md")} - {"index.md"}
    assert {name for name in names if f"({name})" not in index} == set()

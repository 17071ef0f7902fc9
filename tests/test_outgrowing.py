"""The code of the user guide's page on data larger than memory runs, in its order."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "user_guide" / "outgrowing_one_machine.md"


@pytest.mark.thorough
def test_the_page_runs(tmp_path, monkeypatch):
    dask = pytest.importorskip("dask")
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    scope = {"__name__": "page"}
    with dask.config.set(scheduler="synchronous"):
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), scope)
    assert scope["projected"].compute().shape == (20_000, 3)


def test_a_source_of_the_page_takes_twenty_lines():
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for body in re.findall(r"class \w+:\n(.*?)\n\n\n", block, re.DOTALL):
            assert len(body.splitlines()) <= 20

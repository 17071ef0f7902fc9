"""`python -m benchmarks`: discovery, faults, the page; nothing is measured here."""

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.outcomes import refuses

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def load(monkeypatch):
    """Import a module of the folder as the command does."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module
    for name in ("report", "peers", "picture", "times", "benchmarks.__main__"):
        sys.modules.pop(name, None)


@pytest.fixture
def command(load):
    return load("benchmarks.__main__")


def test_every_module_is_found_and_has_tables(command):
    names = command.modules()
    assert names[0] == "peers"
    assert {"noise", "personalization", "rows", "spectral", "trace"} <= set(names)
    assert not set(names) & command.HELPERS


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_every_module_gives_tables_and_runs_as_a_script(command, path):
    if path.stem in command.HELPERS:
        return
    # Read, not imported: one of them has the name of a module of the standard library.
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [argument.arg for argument in functions["tables"].args.args] == ["full"]
    assert isinstance(tree.body[-1], ast.If)  # __name__ == "__main__"


def test_page_and_results_agree_and_name_no_machine(command):
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    page = (ROOT / "benchmarks" / "tables.md").read_text(encoding="utf-8")
    assert page == command.markdown(command.ordered(results))
    shown = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert shown == command.summary(command.ordered(results))
    for heading, name, titles, _ in command.SUMMARY:
        found = [table["title"] for table in results[name]["tables"]]
        assert f"## {heading}" in shown
        assert all(any(title.startswith(t) for title in found) for t in titles), name
    assert list(results) == command.modules()
    assert not re.search(r"/(tmp|work|home|root)/|This run did not finish", page)


def test_a_module_that_fails_leaves_the_others(command, monkeypatch, tmp_path, capsys):
    def run(name, full, limit):
        part = {"tables": [], "fault": "", "seconds": 1, "full": full, "environment": {"skdp": "0"}}
        if name == "noise":
            return part | {"fault": "ValueError: no"}
        table = {"title": name, "head": ["a", "b|c"], "rows": [["x", 1.23456]], "notes": ["so"]}
        return part | {"tables": [table]}

    monkeypatch.setattr(command, "run", run)
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "page.md")]
    files += ["--page", str(tmp_path / "summary.md")]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *files, "rows", "noise"])
    command.main()
    page = (tmp_path / "page.md").read_text()
    assert "| x | 1.235 |" in page and "b\\|c" in page
    assert "did not finish: ValueError: no" in page
    monkeypatch.setattr(sys, "argv", ["benchmarks", *files, "trace"])
    command.main()  # the other parts stay
    assert list(json.loads((tmp_path / "r.json").read_text())) == ["noise", "rows", "trace"]
    assert "not finished: noise" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["benchmarks", "tables"])
    refuses(SystemExit, None, command.main)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_pass_of_a_default_fit_has_its_reason(load):
    """A new release of a default fit once ended the benchmark of times."""
    pytest.importorskip("threadpoolctl")
    for _, number, names, reasons in load("times").passes():
        assert int(number) == len(names.split(", ")) == len(reasons.split("; "))


def test_tables_are_collected_and_aligned(load, capsys):
    report = load("report")
    (table,) = report.shown(lambda: report.show("t", ["a", "long"], [["x", 2.0]], "note"))
    assert table.as_text() == "t\na  long\nx  2\nnote"
    assert capsys.readouterr().out == "\nt\na  long\nx  2\nnote\n"
    (table,) = report.printed("t", lambda: print("some text"))
    assert "```text\nsome text\n```" in table.as_markdown()


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_late_and_failing_modules_are_ended(command, monkeypatch, capfd):
    def child(code):
        monkeypatch.setattr(sys, "executable", "sh")
        real = subprocess.Popen
        run = lambda cmd, **options: real(["sh", "-c", code], **options)  # noqa: E731
        monkeypatch.setattr(command.subprocess, "Popen", run)
        monkeypatch.setattr(command, "environment_of", dict)
        result = command.run("noise", False, 0.5)
        monkeypatch.undo()
        return result["fault"]

    assert child("sleep 60 & sleep 60") == "stopped after 0.5 s"
    assert child("echo 'ValueError: no' >&2; exit 1") == "ValueError: no"
    assert child("exit 0") == ""


def test_peers_that_are_not_there(load, tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.setenv("SKDP_PEERS", str(tmp_path))
    run = load("peers").run_peer("diffprivlib", np.eye(2), 1, [1.0], 1, 1.0)
    assert run.cell(1.0) == "not installed"
    assert run.ratio() == ("", "")

"""The command line of ledger files."""

import runpy
import sys

import pytest

from skdp import PrivacyLedger
from skdp.ledger import main
from tools.ledgers import X, pca
from tools.outcomes import refuses


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "budgets.ledger")


@pytest.fixture
def run(capsys):
    def run(*arguments, code=0):
        assert main(arguments) == code
        told = capsys.readouterr()
        return told.out if code == 0 else told.err

    return run


def test_help_is_text_for_people(capsys):
    refuses(SystemExit, None, main, ["--help"])
    told = capsys.readouterr().out
    assert "``" not in told and "----" not in told
    assert "what each dataset has spent" in told


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_add_show_history(file, run):
    budget = ("--epsilon", "2", "--delta", "1e-6")
    assert "epsilon=2, delta=1e-06" in run("add", file, "patients", *budget, "--unit", "row")
    run("add", file, "A & B", *budget)
    assert "no fits yet" in run("history", file)
    with PrivacyLedger.open(file, "patients", note="Anna: Q4 report"):
        pca().fit(X)
    shown = run("show", file)
    assert shown.index("[patients]") < shown.index("DPPCA") < shown.index("[A & B]")
    assert "[A & B]" not in run("show", file, "--dataset", "patients")
    for options in (), ("--html",):  # a smaller delta, of what is told alone
        assert "spent (0.6703, 1e-09)" in run("show", file, "--delta", "1e-9", *options)
    page = run("show", file, "--html")
    assert "<h2>patients</h2><table>" in page and "<h2>A &amp; B</h2>" in page
    head, *lines = run("history", file, "--dataset", "patients").splitlines()
    assert head.split()[:4] == ["at", "dataset", "fit", "estimator"]
    assert [line.split()[-4:] for line in lines] == [
        [state, "Anna:", "Q4", "report"] for state in ("open", "fitted")
    ]
    assert "no dataset 'visit'" in run("show", file, "--dataset", "visit", code=1)
    assert "other terms" in run("add", file, "A & B", "--epsilon", "3", "--delta", "0", code=1)
    other = ("--unit", "group", "--adjacency", "replace")
    assert "for replacing all rows of one group" in run("add", file, "stays", *budget, *other)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_export_verify(file, run, tmp_path):
    run("add", file, "patients", "--epsilon", "2", "--delta", "1e-6")
    noted = PrivacyLedger.open(file).file_hash
    with PrivacyLedger.open(file):
        pca().fit(X)
    exported = tmp_path / "all.json"
    exported.write_text(run("export", file), encoding="utf-8")
    for each in (file, str(exported)):
        assert "4 lines are as they were written" in run("verify", each, "--hash", noted)
        assert "were removed" in run("verify", each, "--hash", noted[::-1], code=1)
    assert "There is no file" in run("show", str(tmp_path / "missing"), code=1)
    assert "cannot be read" in run("export", str(tmp_path / "missing"), code=1)


def test_it_is_a_program(file, monkeypatch, capsys):
    """What ``python -m skdp.ledger`` runs, without the seconds of a start."""
    monkeypatch.setattr(sys, "argv", ["ledger", "add", file, "a", "--epsilon=1", "--delta=1e-6"])
    monkeypatch.delitem(sys.modules, "skdp.ledger")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("skdp.ledger", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("[a]\n")

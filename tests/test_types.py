"""Users' type checkers have nothing to say about the code of the README and the quickstart."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import skdp

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/quickstart.md", "docs/small_data_real_columns.md")
USES = """
from typing import assert_type

import numpy as np

from skdp import DPPCA, DPRidge, DPRidgeClassifier, DPStandardScaler, DPTruncatedSVD
from skdp.theory import FitPlan

X, y = np.zeros((9, 3)), np.zeros(9)
names = {"a": (0.0, 1.0), "b": (0, 5), "c": (-1.0, 1)}
assert_type(DPPCA("auto", clip_norm=1, bounds=names).fit(X), DPPCA)
assert_type(DPPCA(0.9, center=np.zeros(3), budget_split={"gram": 1.0}), DPPCA)
assert_type(DPRidge(target_bounds=(-1, 1), bounds=[(0.0, 1.0)] * 3).fit(X, y), DPRidge)
assert_type(DPRidgeClassifier(classes=[0, 1]).plan(100, 3), FitPlan)
DPTruncatedSVD(privacy_unit="entry", unit_bound=(0, 5), random_state=np.random.default_rng(0))
DPStandardScaler(bounds=(np.zeros(3), np.ones(3)))
"""
WRONG = "from skdp import DPPCA\n\nDPPCA(2, epsilon='much')\n"

pytestmark = pytest.mark.slow  # a type checker reads all dependencies


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    for page in PAGES:
        text = (ROOT / page).read_text()
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        assert blocks, page
        (folder / f"{Path(page).stem}.py").write_text("\n".join(blocks))
    (folder / "uses.py").write_text(USES)
    return folder


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def mypy(folder, *files):
    """Strict, as skdp is installed; scikit-learn has no types of its own."""
    home = Path(skdp.__file__).parents[1]
    path = "" if home.name == "site-packages" else f"mypy_path = {home}\n"  # installed: found
    (folder / "mypy.ini").write_text(f"[mypy]\n{path}")
    options = ("--strict", "--disable-error-code=import-untyped", "--follow-imports=silent")
    return run(folder, sys.executable, "-m", "mypy", *options, *files)


def test_mypy_is_content(code):
    status, said = mypy(code, *sorted(path.name for path in code.glob("*.py")))
    assert status == 0, said


def test_mypy_sees_a_wrong_budget(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    status, said = mypy(tmp_path, "wrong.py")
    assert status == 1
    assert '"epsilon"' in said

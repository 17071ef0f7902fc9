"""Where tests run, and on which skdp; `every_test.py` is loaded where they run."""

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

# Before numpy, and for the processes of xdist: tests are small, and threads only wait for threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

collect_ignore = ["every_test.py", "refusals.py", "tools"]  # plugins and tools
HOME = Path(find_spec("skdp").origin).parent


def pytest_configure(config):
    """A process that only hands tests out to others starts at once: it imports nothing of ours.

    It gives each of them tests that lie together: what a file makes once is made once.
    """
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("every_test")
    elif config.option.dist == "load":
        config.option.dist = "worksteal"


def pytest_report_header(config):
    others = (f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return [f"skdp from {HOME}", ", ".join(others)]


def pytest_sessionstart(session):
    """With SKDP_INSTALLED set, tests of the source tree would prove nothing about the wheel."""
    inside = HOME.resolve().is_relative_to(Path(sys.prefix).resolve())
    if os.environ.get("SKDP_INSTALLED") and not inside:
        pytest.exit(f"skdp is not the installed one: {HOME}", returncode=3)

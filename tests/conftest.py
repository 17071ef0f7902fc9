"""What every test needs: a fixed run of hypothesis, no display, and the right copy of skdp."""

import gc
import os
import sys
import zlib
from functools import partial
from pathlib import Path

# Before numpy, and for the processes of xdist: tests are small, and threads only wait for threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy
import pytest
import scipy
import sklearn
import sklearn.base

import skdp
import tools  # noqa: F401  data, neighbours and pairs of every unit
from skdp.privacy.noise.words import SystemSource
from skdp.testing import seeded_entropy

_SYSTEM_WORDS = SystemSource.words

os.environ.setdefault("MPLBACKEND", "Agg")

collect_ignore = ["refusals.py", "tools"]  # plugins, which must come before skdp
# What a planted bug is seen by goes into the first tier: tests/tools/select_tier.py --write
_CHOSEN_FILE = Path(__file__).with_name("first_tier.txt")
CHOSEN = set(_CHOSEN_FILE.read_text().splitlines()) if _CHOSEN_FILE.exists() else set()

# The same examples on every run and machine; no test fails because a machine is slow.
hypothesis.settings.register_profile("skdp", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("skdp")


def pytest_configure(config):
    """In pyproject.toml it would import scikit-learn, and numpy, before the lines above."""
    config.addinivalue_line("filterwarnings", "ignore::sklearn.exceptions.SkipTestWarning")


def pytest_report_header(config):
    return [
        f"skdp {skdp.__version__} from {Path(skdp.__file__).parent}",
        f"numpy {numpy.__version__}, scipy {scipy.__version__}, sklearn {sklearn.__version__}",
    ]


def pytest_sessionstart(session):
    """With SKDP_INSTALLED set, tests of the source tree would prove nothing about the wheel."""
    inside = Path(skdp.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())
    if os.environ.get("SKDP_INSTALLED") and not inside:
        pytest.exit(f"skdp is not the installed one: {skdp.__file__}", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Hardly anything that is collected is garbage: it is neither looked for nor looked at again.

    That is a third of the time of a collection, which every process of xdist makes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Tests have no examples in their docstrings: none are looked for."""
    return [found for found in (yield) if type(found).__name__ != "DoctestModule"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Sort tests into tiers before `-m` chooses; seed the examples in docstrings, as tests are."""
    first, ways = {}, {}
    gone = CHOSEN - {item.nodeid for item in items}
    files = {item.location[0] for item in items} if not any("::" in a for a in config.args) else ()
    config.chosen_and_gone = {test for test in gone if test.partition("::")[0] in files}
    for item in items:
        if type(item).__name__ == "DoctestItem":  # out of reach of the fixtures below
            item.runtest = partial(_run_seeded, item.runtest, _key(item.nodeid))
        another = _is_another_way(item, first, ways) or _is_thorough(item, first)
        if item.nodeid in CHOSEN:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "deep"]
        elif another:
            item.add_marker("deep")


def _run_seeded(run, key):
    with seeded_entropy(key):
        run()


def _is_another_way(item, first, ways):
    """Tell whether a test asks of an estimator what its first way was asked already."""
    if item.get_closest_marker("every_way"):
        return False
    estimator = _parameters(item).get("estimator")
    if not isinstance(estimator, sklearn.base.BaseEstimator):
        return False
    if (way := ways.get(id(estimator))) is None:  # written once: it takes a millisecond
        way = ways[id(estimator)] = repr(estimator)
    return first.setdefault((_function(item), type(estimator)), way) != way


def _is_thorough(item, first):
    """Tell whether a long test has no parameters, or others than its first ones."""
    if item.get_closest_marker("thorough") is None:
        return False
    return not _parameters(item) or first.setdefault(_function(item), item.name) != item.name


def _parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def _function(item):
    return item.nodeid.partition("[")[0]


@pytest.fixture(autouse=True, scope="module")
def _entropy_of_module_fixtures(request):
    with seeded_entropy(_key(request.node.nodeid)):
        yield


@pytest.fixture(autouse=True)
def _entropy_of_the_test(request):
    """Seed the noise of each test by its name: what passed once passes on every run.

    Fits still differ among themselves. Marked ``system_entropy``, a test gets the real source.
    """
    if request.node.get_closest_marker("system_entropy"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SystemSource, "words", _SYSTEM_WORDS)
            yield
    else:
        with seeded_entropy(_key(request.node.nodeid)):
            yield


def _key(nodeid):
    return zlib.crc32(nodeid.encode())

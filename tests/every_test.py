"""Plugin of each process that runs tests: a fixed run of hypothesis, noise by name, two tiers."""

import functools
import gc
import os
import sys
import zlib
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import sklearn.base
from _pytest.runner import runtestprotocol

import tools  # noqa: F401  data, neighbours and pairs of every unit
from skdp.privacy.noise.words import SystemSource
from skdp.testing import seeded_entropy

_SYSTEM_WORDS = SystemSource.words
SMALL = {"CACHED": 64, "BLOCK": 64, "BLOCK_ROWS": 8, "_JOINED": 16}

# Tests that detect planted bugs belong to the first tier: tests/tools/select_tier.py --write
_CHOSEN_FILE = Path(__file__).with_name("first_tier.txt")
CHOSEN = set(_CHOSEN_FILE.read_text().splitlines()) if _CHOSEN_FILE.exists() else set()

# The same examples on every run and machine; no test fails because a machine is slow.
hypothesis.settings.register_profile("skdp", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("skdp")


# Signatures do not change, and scikit-learn reads them again whenever parameters are asked for.
_names = sklearn.base.BaseEstimator._get_param_names.__func__
sklearn.base.BaseEstimator._get_param_names = classmethod(functools.cache(_names))


def pytest_configure(config):
    """In pyproject.toml it would import scikit-learn, and numpy, before the lines above."""
    config.addinivalue_line("filterwarnings", "ignore::sklearn.exceptions.SkipTestWarning")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Pause and freeze the garbage collector during collection, which makes hardly any garbage.

    That is a third of the time of a collection, which every process of xdist makes. Tests leave
    hardly any garbage either: looking for it less often saves a tenth of their time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Let a process of xdist report six passed tests in one short message.

    A message takes as long as a short test. Durations are reported as usual.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Tests have no examples in their docstrings: none are looked for."""
    here = Path(__file__).parent in file_path.parents
    return [found for found in (yield) if not here or type(found).__name__ != "DoctestModule"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Sort tests into tiers before `-m` chooses."""
    first, ways = {}, {}
    gone = CHOSEN - {item.nodeid for item in items}
    whole = not any("::" in argument for argument in config.args)
    files = {item.nodeid.partition("::")[0] for item in items if whole}
    config.chosen_and_gone = {test for test in gone if test.partition("::")[0] in files}
    for item in items:
        another = _is_another_way(item, first, ways) or _is_thorough(item, first)
        if item.nodeid in CHOSEN:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "deep"]
        elif another:
            item.add_marker("deep")


def _is_another_way(item, first, ways):
    """Whether a test repeats a check of an estimator that its first configuration had."""
    if item.get_closest_marker("every_way"):
        return False
    estimator = _parameters(item).get("estimator")
    if not isinstance(estimator, sklearn.base.BaseEstimator):
        return False
    if (way := ways.get(id(estimator))) is None:  # written once: it takes a millisecond
        way = ways[id(estimator)] = repr(estimator)
    return first.setdefault((_function(item), type(estimator)), way) != way


def _is_thorough(item, first):
    """Tell whether a long test has no parameters, or others than its first ones.

    With names, `thorough("unit")`: others than the first ones of each value of these parameters.
    """
    if (mark := item.get_closest_marker("thorough")) is None:
        return False
    parameters = _parameters(item)
    kind = (_function(item), *(repr(parameters[name]) for name in mark.args if parameters))
    return not parameters or first.setdefault(kind, item.name) != item.name


def _parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def _function(item):
    return item.nodeid.partition("[")[0]


@pytest.fixture(autouse=True, scope="session")
def _small_files_in_memory(tmp_path_factory):
    """What searches reserve is durable by the order of events, which needs no disk."""
    tmp_path_factory.getbasetemp()  # files of data are large
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", "/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        yield


@pytest.fixture(autouse=True, scope="module")
def _small_blocks(request):
    """Make data of many blocks where all ways are tested: sizes that trade memory are small."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem in {
            "test_common",
            "test_golden",
            "test_proven",
            "test_public_steps",
            "test_standard_scaler",
        }:
            for module in [sys.modules[name] for name in sys.modules if name.startswith("skdp")]:
                for size in SMALL.keys() & vars(module):
                    patch.setattr(module, size, SMALL[size])
        yield


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


@pytest.fixture
def rng():
    """Make the data of a test, the same whatever ran before."""
    return np.random.default_rng(0)


def _key(nodeid):
    return zlib.crc32(nodeid.encode())

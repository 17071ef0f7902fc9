"""What every test needs: a fixed run of hypothesis, no display, and the right copy of skdp."""

import os
import sys
import zlib
from pathlib import Path

import hypothesis
import numpy
import pytest
import scipy
import sklearn

import skdp
from skdp.privacy.noise.words import SystemSource
from skdp.testing import seeded_entropy

_SYSTEM_WORDS = SystemSource.words

os.environ.setdefault("MPLBACKEND", "Agg")

collect_ignore = ["refusals.py"]  # a plugin, which must come before skdp

# The same examples on every run and machine; no test fails because a machine is slow.
hypothesis.settings.register_profile("skdp", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("skdp")


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


def pytest_collection_modifyitems(items):
    """Whether a variance lies below the noise follows the noise: no error in tests of other things.

    ``pytest.warns`` sees that warning all the same.
    """
    below = pytest.mark.filterwarnings("ignore:DPPCA released:skdp.exceptions.PrivacyWarning")
    for item in items:
        item.add_marker(below)


@pytest.fixture(autouse=True, scope="module")
def _entropy_of_module_fixtures(request):
    with seeded_entropy(_key(request)):
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
        with seeded_entropy(_key(request)):
            yield


def _key(request):
    return zlib.crc32(request.node.nodeid.encode())

"""Our own checks on every estimator, in the configurations that take different ways."""

from functools import partial

import numpy as np
import pytest
from sklearn.base import clone

from skdp import DPTraceRegressor
from skdp.testing import seeded_entropy
from tools.checks import parametrize_with_dp_checks
from tools.data import settings_of
from tools.fit_checks import check_receipt, check_worst_case_pair
from tools.null_checks import check_null_release, check_pays_first, check_same_answers
from tools.pairs import audits
from tools.ways import ESTIMATORS, FURTHER

FIRST_CHECKS = {check_pays_first, check_receipt}
FIRST_CLASSES = ("DPPCA", "DPTruncatedSVD", "DPLowRankFactorizer", "DPPersonalizedRegressor",
                 "DPRecommender")  # fmt: skip
NULL_CLASSES = {*FIRST_CLASSES, "DPScoreDensity"} - {"DPPersonalizedRegressor"}


def cases():
    """Yield all checks of the ways; worst pairs are audited below, where more is asked of them."""
    seen = set()
    for case in parametrize_with_dp_checks(ESTIMATORS).args[1]:
        estimator, check = case.values
        if check.func is check_null_release:
            # In the first tier of some classes, and its second half of each unit of the others.
            kind = type(estimator), settings_of(estimator).unit
            whole = kind[0] not in seen and kind[0].__name__ in NULL_CLASSES
            marks = pytest.mark.every_way if whole else pytest.mark.deep
            if not whole and kind not in seen:
                half = partial(check_same_answers, kind[0].__name__)
                name = case.id.replace("null_release", "same_answers")
                yield pytest.param(estimator, half, id=name, marks=pytest.mark.every_way)
            seen.update((kind, kind[0]))
        else:
            first = type(estimator).__name__ in FIRST_CLASSES and check.func in FIRST_CHECKS
            marks = () if first else pytest.mark.deep
        if check.func is not check_worst_case_pair:
            yield pytest.param(estimator, check, id=case.id, marks=marks)


@pytest.mark.parametrize(("estimator", "check"), list(cases()))
def test_keeps_its_promise(estimator, check):
    check(estimator)


OTHERS = [e for e in FURTHER if not isinstance(e, DPTraceRegressor)]


@pytest.mark.deep
@pytest.mark.parametrize("check", [check_null_release, check_receipt, check_worst_case_pair])
@pytest.mark.parametrize("estimator", OTHERS, ids=repr)
def test_further_ways(estimator, check):
    """A large budget, so that few rows go through all releases of a fit; formulas have a limit."""
    printed = getattr(estimator, "calibration", "") == "printed"
    large = clone(estimator).set_params(epsilon=estimator.epsilon if printed else 1000.0)
    check(type(estimator).__name__, large)


# Half of the pairs of each way, a third of those of each further way, in turn (deep: all): they are
# one more axis of the array.
PARTS = [(e, i, n) for n, ways in ((2, ESTIMATORS), (3, FURTHER)) for i, e in enumerate(ways)]
PRIVATE = [pytest.param(*part, id=repr(part[0])) for part in PARTS if part[0].epsilon != np.inf]


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.every_way
@pytest.mark.parametrize(("estimator", "i", "parts"), PRIVATE)
def test_worst_case_pair_is_tight(estimator, i, parts, whole):
    """Realised over claimed mu is at most 1, and near 1 where one pair is the worst throughout.

    The loosest bound that is printed is twice what one interaction can change.
    """
    with seeded_entropy(1):  # which pair is the worst at a step depends on the answers before it
        found = [report.check() for _, report in audits(estimator, i, 1 if whole else parts)]
    assert found
    if all(report.claimed_mu for report in found):
        ratio = max(report.realised_mu / report.claimed_mu for report in found)
        assert 0.499 <= ratio <= 1 + 1e-9

"""Our own checks on every estimator, in the configurations that take different ways."""

from functools import partial
from zlib import crc32

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags

from skdp import DPTraceRegressor, DPTruncatedSVD
from skdp.testing import seeded_entropy
from tools import fit_checks, null_checks
from tools.checks import parametrize_with_dp_checks
from tools.data import settings_of
from tools.pairs import audits
from tools.ways import ESTIMATORS, FURTHER

FIRST_CHECKS = {null_checks.check_pays_first, fit_checks.check_receipt}
FIRST_CLASSES = ("DPPCA", "DPTruncatedSVD", "DPLowRankFactorizer", "DPPersonalizedRegressor",
                 "DPRecommender")  # fmt: skip


def cases():
    """Yield all checks of the ways; worst pairs are audited below, where more is asked of them."""
    seen = set()
    for case in parametrize_with_dp_checks(ESTIMATORS).args[1]:
        estimator, check = case.values
        if check.func is null_checks.check_null_release:
            # In the first tier once for each fit, which two classes may share, with a third of the
            # data in its first half; and its second half, with half of the data, for each of its
            # units, of dense or sparse rows, and by each algorithm where the unit is no row.
            cls, unit = type(estimator), settings_of(estimator).unit
            fit = getattr(cls, "_fit_session", cls)
            sparse = get_tags(estimator).input_tags.sparse
            names = () if unit in ("row", "group") else ("algorithm", "n_iter")
            way = fit, unit, sparse, *(getattr(estimator, name, None) for name in names)
            marks = pytest.mark.deep
            if fit not in seen:
                few = partial(null_checks.check_null_release, cls.__name__, every=3)
                name = case.id.replace("null_release", "few_null_releases")
                yield pytest.param(estimator, few, id=name, marks=pytest.mark.every_way)
            elif way not in seen:
                half = partial(null_checks.check_same_answers, cls.__name__, every=2)
                name = case.id.replace("null_release", "same_answers")
                yield pytest.param(estimator, half, id=name, marks=pytest.mark.every_way)
            if (cls, unit) not in seen and estimator.epsilon != np.inf:
                large = partial(null_checks.check_same_answers_at_large_budget, cls.__name__)
                name = case.id.replace("null_release", "same_answers_at_large_budget")
                yield pytest.param(estimator, large, id=name, marks=pytest.mark.deep)
            seen.update((way, (cls, unit), fit))
        else:
            first = type(estimator).__name__ in FIRST_CLASSES and check.func in FIRST_CHECKS
            marks = () if first else pytest.mark.deep
        if check.func is not fit_checks.check_worst_case_pair:
            yield pytest.param(estimator, check, id=case.id, marks=marks)


@pytest.mark.parametrize(("estimator", "check"), list(cases()))
def test_keeps_its_promise(estimator, check):
    check(estimator)


def test_moments_of_entries_are_seen_in_answers_alone():
    """Of entries in (0, 1), whose rows are clipped by a level that follows from public sizes."""
    svd = DPTruncatedSVD(1, privacy_unit="entry", algorithm="screened")
    null_checks.check_same_answers("DPTruncatedSVD", svd)


@pytest.mark.deep
@pytest.mark.parametrize(
    "check",
    [null_checks.check_null_release, fit_checks.check_receipt, fit_checks.check_worst_case_pair],
)
@pytest.mark.parametrize(
    "estimator", [e for e in FURTHER if not isinstance(e, DPTraceRegressor)], ids=repr
)
def test_further_ways(estimator, check):
    """A large budget, so that few rows go through all releases of a fit; formulas have a limit."""
    printed = getattr(estimator, "calibration", "") == "printed"
    large = clone(estimator).set_params(epsilon=estimator.epsilon if printed else 1000.0)
    check(type(estimator).__name__, large)


def chosen_ways():
    """Return one way of each class, unit, adjacency and algorithm that somebody thought of.

    And one further way of each class, unit and adjacency that none of these has.
    """
    names = ("algorithm", "method", "solver", "kind", "loss", "normalization")
    first, seen, further = {}, set(), {}
    for way in (way for way in ESTIMATORS + FURTHER if way.epsilon != np.inf):
        kind = type(way), settings_of(way).unit, settings_of(way).adjacency
        if way in ESTIMATORS:
            seen.add(kind)
            first.setdefault((kind, *(getattr(way, name, "") for name in names)), way)
        elif kind not in seen:
            further.setdefault(kind, way)
    return [*first.values(), *further.values()]


def ways_and_parts():
    """Yield ways, and which third of their pairs is tried; deep: all pairs, and most further ways.

    The third follows from the name of the way alone: it stays the same where other ways come or go,
    as one of the thirds may hold no pair that is the worst.
    """
    chosen = chosen_ways()
    for estimator in (way for way in ESTIMATORS + FURTHER if way.epsilon != np.inf):
        name = repr(estimator)
        third = crc32(name.encode()) % 3, 3
        marks = pytest.mark.every_way if estimator in chosen else pytest.mark.deep
        yield pytest.param(estimator, third, id=name, marks=marks)
        if estimator in ESTIMATORS:
            yield pytest.param(estimator, (), id=f"{name}, all pairs", marks=pytest.mark.deep)


@pytest.mark.parametrize(("estimator", "part"), list(ways_and_parts()))
def test_worst_case_pair_is_tight(estimator, part):
    """Realised over claimed mu is at most 1, and near 1 where one pair is the worst throughout.

    The loosest bound that is printed is twice what one interaction can change.
    """
    with seeded_entropy(1):  # which pair is the worst at a step depends on the answers before it
        found = [report.check() for _, report in audits(estimator, *part)]
    assert found
    if all(report.claimed_mu for report in found):
        ratio = max(report.realised_mu / report.claimed_mu for report in found)
        assert 0.499 <= ratio <= 1 + 1e-9

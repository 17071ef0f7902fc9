"""The generator and the decorator, and the parts that the checks are made of."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp

import skdp.testing
from skdp import DPPCA
from skdp.testing import (
    checks,
    contrasting_data,
    dp_estimator_checks,
    fixed_noise,
    null_release,
    parametrize_with_dp_checks,
    register_data,
    seeded_entropy,
)
from skdp.testing._data import CONTRASTS
from skdp.testing._outcomes import difference, documented_attributes, outcome

X = np.random.default_rng(0).standard_normal((40, 4))


def test_public_names_exist():
    assert all(hasattr(skdp.testing, name) for name in skdp.testing.__all__)


def test_generator_yields_clones_and_named_checks():
    estimator = DPPCA(clip_norm=1.0)
    pairs = list(dp_estimator_checks(estimator))
    assert len(pairs) == len(checks.CHECKS)
    assert all(e is not estimator and e.clip_norm == 1.0 for e, _ in pairs)
    left = list(dp_estimator_checks(estimator, expected_failed_checks={"check_joblib": "slow"}))
    assert len(left) == len(pairs) - 1
    with pytest.raises(ValueError, match="unknown names"):
        list(dp_estimator_checks(estimator, expected_failed_checks={"check_nothing": ""}))


def test_decorator_marks_expected_failures():
    def expected(estimator):
        return {} if estimator.adjacency == "replace" else {"check_scaling": "why"}

    mark = parametrize_with_dp_checks(
        [DPPCA(), DPPCA(adjacency="replace")], expected_failed_checks=expected
    ).mark
    cases = mark.args[1]
    assert len(cases) == 2 * len(checks.CHECKS)
    marked = [case for case in cases if case.marks]
    assert len(marked) == 1 and marked[0].values[1].func is checks.check_scaling
    assert mark.kwargs["ids"](cases[0].values[0]) == "DPPCA()"
    assert mark.kwargs["ids"](cases[0].values[1]) == "check_null_release"


class Point(NamedTuple):
    x: float
    y: tuple


@dataclasses.dataclass
class Box:
    value: object


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-15]), False),
        (np.ones(2), np.ones(2, np.float32), False),
        (np.ones(2), np.ones((1, 2)), False),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        (Point(1.0, (2,)), Point(1.0, (2,)), True),
        (Point(1.0, (2,)), Point(1.0, (3,)), False),
        (Box(np.ones(2)), Box(np.ones(2)), True),
        (Box(np.ones(2)), Box(np.zeros(2)), False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": [1, None]}, {"a": [1, None]}, True),
        (sp.csr_array(np.eye(2)), sp.csr_array(np.eye(2)), True),
        (sp.csr_array(np.eye(2)), sp.csr_array(np.ones((2, 2))), False),
        (np.array(["a", None], object), np.array(["a", None], object), True),
        ("a", "b", False),
    ],
)
def test_difference(a, b, same):
    assert (difference(a, b) is None) is same


def test_documented_attributes():
    assert {"components_", "privacy_spent_", "feature_names_in_"} <= documented_attributes(DPPCA)
    assert "epsilon" not in documented_attributes(DPPCA)

    class Child(DPPCA):
        pass

    class Bare:
        """No section."""

    class Pair:
        """Two in a line.

        Attributes
        ----------
        a_, b_ : float
            Both : here.

        Notes
        -----
        c_ : no attribute
        """

    assert documented_attributes(Child) == documented_attributes(DPPCA)
    assert documented_attributes(Bare) == set()
    assert documented_attributes(Pair) == {"a_", "b_"}


def test_outcome_collects_everything():
    data = contrasting_data(DPPCA())["dense"]["ordinary"]
    seen = outcome(DPPCA(random_state=0), data)
    assert seen.exception is None and "PrivacyWarning" in seen.warnings[0]
    seen = outcome(DPPCA(epsilon=-1), data)
    assert seen.exception.startswith("ValueError") and seen.attributes == {}


def test_null_release_reads_or_not():
    touched = []

    def answer(step):
        touched.append(step)
        return np.ones(2, np.int64)

    from skdp.privacy import Bound, Bounded, PrivacyBudget, PrivacySession
    from skdp.privacy.noise.words import make_source

    for run in (False, True):
        s = PrivacySession(
            PrivacyBudget(1.0, 1e-6), source=make_source(None), adjacency="replace", unit="row"
        )
        with null_release(run=run), fixed_noise(0):
            first = s.release(Bounded(Bound("a", (2,), 1.0), answer), 0.5).value
        assert len(touched) == run
        assert np.all(np.abs(first) > 0)


def test_fixed_noise_and_seeded_entropy():
    def noise():
        return DPPCA(clip_norm=1.0).fit(X).components_

    with fixed_noise(0):
        assert np.array_equal(noise(), noise())
    with seeded_entropy(0):
        a, b = noise(), noise()
    with seeded_entropy(0):
        assert np.array_equal(a, noise())
    assert not np.array_equal(a, b)


def test_own_data_can_be_registered():
    class Odd(DPPCA):
        privacy_unit = "odd"
        _privacy_units = {"odd": ("add_remove",)}

    with pytest.raises(ValueError, match="odd"):
        contrasting_data(Odd())
    register_data("odd")(CONTRASTS["row"])
    try:
        checks.check_null_release("Odd", Odd())
        checks.check_receipt("Odd", Odd())
    finally:
        del CONTRASTS["odd"]


@pytest.mark.parametrize("unit", sorted(CONTRASTS))
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_contrasting_data(unit, adjacency):
    """Within a family only private things differ: the number of rows where it is private."""
    estimator = DPPCA(adjacency=adjacency)
    estimator.privacy_unit = unit
    for family in contrasting_data(estimator).values():
        shapes = {item.X.shape for item in family.values()}
        assert len({shape[1] for shape in shapes}) == 1
        assert (len(shapes) > 1) <= (adjacency == "add_remove" and unit in ("row", "group"))
        assert next(iter(family)) == "ordinary" and len(family) >= 3

"""The decorator, contrasting data, and the parts that the checks are made of."""

import dataclasses
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPPCA
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from tools import checks, fit_checks
from tools.checks import parametrize_with_dp_checks
from tools.data import CONTRASTS, null_release_data
from tools.outcomes import difference, documented_attributes, outcome


def test_decorator_asks_every_check_and_expects_no_failure():
    cases = parametrize_with_dp_checks([DPPCA(), DPPCA(adjacency="replace")]).mark.args[1]
    assert [case.values[1].func for case in cases] == 2 * list(checks.CHECKS)
    assert not any(case.marks for case in cases)
    assert cases[0].id == "DPPCA()-check_null_release"


def test_outcome_collects_everything():
    data = null_release_data(DPPCA())["dense"]["ordinary"]
    seen = outcome(DPPCA(random_state=0), data)
    assert seen.exception is None and "PrivacyWarning" in seen.warnings[0]
    seen = outcome(DPPCA(epsilon=-1), data)
    assert seen.exception.startswith("ValueError") and seen.attributes == {}


class _Understated(DPGridSearchCV):
    """A search whose plan says less of a run than is spent on it."""

    def fit(self, X, y=None, **params):
        super().fit(X, y, **params)
        run = self.selection_plan_.run
        self.selection_plan_ = replace(
            self.selection_plan_, run=run._replace(value=0.99 * run.value)
        )
        return self


@pytest.mark.parametrize("strategy", ["compose", "random_stopping"])
def test_receipts_of_searches_bound_each_run(strategy):
    scorer = make_private_scorer("reconstruction", (0.0, 100.0))
    model = DPPCA(1, clip_norm=1.0)
    settings = {"strategy": strategy, "epsilon": 15.0}
    grid = {"center": ["private", "none"]}
    fit_checks.check_receipt("honest", DPGridSearchCV(model, grid, scorer, **settings))
    with pytest.raises(AssertionError, match="its plan says"):
        fit_checks.check_receipt("understated", _Understated(model, grid, scorer, **settings))


@pytest.mark.parametrize("unit", sorted(CONTRASTS))
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_contrasting_data(unit, adjacency):
    """Within a family only private things differ: the number of rows where it is private."""
    estimator = DPPCA(adjacency=adjacency)
    estimator.privacy_unit = unit
    for family in null_release_data(estimator).values():
        shapes = {item.X.shape for item in family.values()}
        assert len({shape[1] for shape in shapes}) == 1
        private = unit == "group" or (unit == "row" and adjacency == "add_remove")
        assert (len(shapes) > 1) <= private
        assert next(iter(family)) == "ordinary" and len(family) >= 3


# -- what can be seen of a fit, and where two differ -----------------------------------------------


class Point(NamedTuple):
    x: float
    y: tuple


@dataclasses.dataclass
class Box:
    value: object


ALIKE = [
    np.array([1.0, np.nan]), np.array(["a", None], object), sp.csr_array(np.eye(2)),
    {"a": [1, None]}, float("nan"), Point(1.0, (2,)), Box(np.ones(2)),
]  # fmt: skip


@pytest.mark.parametrize("value", ALIKE)
def test_copies_do_not_differ(value):
    assert difference(value, deepcopy(value)) is None


@pytest.mark.parametrize(("a", "b"), [
    (np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-15])), (np.ones(2), np.ones(2, np.float32)),
    (np.ones(2), np.ones((1, 2))), (Box(np.ones(2)), Box(np.zeros(2))), (1, 1.0), ("a", "b"),
    (Point(1.0, (2,)), Point(1.0, (3,))), (sp.csr_array(np.eye(2)), sp.csr_array(np.ones((2, 2)))),
    ({"a": 1}, {"b": 1}),
])  # fmt: skip
def test_others_differ(a, b):
    assert difference(a, b) is not None


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

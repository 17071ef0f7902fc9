"""The sensitivity fuzz: tight on right code, loud on planted bugs."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.rows import RowQuery
from skdp.testing import check_charge_before_read, check_sensitivity
from skdp.testing.sensitivity import FORMATS, NEIGHBOURS
from tools.fit_checks import check_order_invariance
from tools.outcomes import refuses

X = np.random.default_rng(0).standard_normal((200, 4))
STEP = 2.0**-30


class Toy:
    """Statistics of any unit, in whole numbers of steps; `factor` is the claim over the truth."""

    def __init__(self, data, l2, statistic, factor=1.0, **bound):
        self.data, self.l2, self.statistic, self.factor = data, l2, statistic, factor
        self.bound = bound

    def release(self):
        value = self.statistic(self.data)
        bound = Bound("toy", np.shape(value), self.l2 * self.factor, slack=2.0, **self.bound)
        return Bounded(bound, lambda step: np.asarray(np.rint(value / step), np.int64))


def clean(A, low, high):
    A = A.toarray() if sp.issparse(A) else np.asarray(A)
    return np.clip(np.nan_to_num(A, posinf=high, neginf=low), low, high)


def normalised(A):
    B = (clean(A, 0, 1) != 0).astype(float)
    return (B / np.sqrt(np.maximum(B.sum(axis=1, keepdims=True), 2))).sum(axis=0)


UNITS = {
    ("entry", "add_remove"): (3.0, lambda A: clean(A, -1.0, 3.0)),
    ("entry", "replace"): (4.0, lambda A: clean(A, -1.0, 3.0)),
    ("interaction", "add_remove"): (0.5**0.5, normalised),
    ("interaction", "replace"): (1.0, normalised),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "adjacency"), UNITS)
def test_every_unit_reaches_its_supremum(unit, adjacency):
    l2, statistic = UNITS[unit, adjacency]
    kwargs = {"unit": unit, "adjacency": adjacency, "entry_bounds": (-1.0, 3.0), "n_climb": 10,
              "shape": (5, 5), "max_starts": 300}  # fmt: skip
    report = check_sensitivity(lambda data: Toy(data, l2, statistic), "release", **kwargs)
    assert 0.95 < report.ratio <= 1 + 1e-9, report
    with pytest.raises(AssertionError, match="more than is claimed"):
        check_sensitivity(lambda data: Toy(data, l2, statistic, 0.94), "release", **kwargs)


def test_a_release_of_nothing_moves_by_nothing():
    toy = {"max_starts": 20, "n_climb": 0}
    report = check_sensitivity(lambda A: Toy(A, 1.0, lambda A: np.zeros(0)), "release", **toy)
    assert report.ratio == 0.0


@pytest.mark.parametrize(
    "options",
    [{"unit": "rows"}, {"adjacency": "replace_one"}, {"bases": ()}, {"budgets": ()}],
    ids=str,
)
def test_nothing_passes_because_nothing_was_tried(options):
    query = partial(RowQuery, clip_norm=1.0, adjacency="add_remove")
    refuses(ValueError, "no pair|no neighbours", check_sensitivity, query, "gram", **options)


def test_every_registered_unit_is_tested():
    assert {unit for unit, _ in UNITS} | {"row"} == set(NEIGHBOURS)


@pytest.mark.thorough
def test_a_report_keeps_the_worst_pair_and_comes_again():
    def run():
        return check_sensitivity(
            lambda A: RowQuery(A, clip_norm=1.0, adjacency="add_remove"), "gram", max_starts=60
        )

    a, b = run(), run()
    assert (a.ratio, a.worst, a.step, a.n_pairs) == (b.ratio, b.worst, b.step, b.n_pairs)
    assert np.array_equal(a.pair[0], b.pair[0], equal_nan=True)
    assert len(a.pair[1]) == len(a.pair[0]) + 1
    assert "gram" in str(a) and 0 < a.step < 1


def linf_query(factor):
    def release(A):
        clipped = np.clip(np.nan_to_num(clean(A, -1e300, 1e300)), -1.0, 1.0).sum(axis=0)
        bound = Bound("scores", clipped.shape, 1.0, linf=2.0 * factor)
        return Bounded(bound, lambda step: np.asarray(np.rint(clipped / step), np.int64))

    return release


def test_range_of_a_choice():
    report = check_sensitivity(lambda A: A, linf_query(1.0), max_starts=60, n_climb=20)
    assert set(report.ratios) == {"linf"}
    assert 0.9 < report.ratio <= 1
    with pytest.raises(AssertionError, match="linf"):
        check_sensitivity(lambda A: A, linf_query(0.5), max_starts=60, n_climb=20)


@pytest.mark.thorough
def test_l1_is_attacked_too():
    def short(query):
        bounded = query.sums()
        bound = bounded.bound._replace(l1=bounded.bound.l2)
        return Bounded(bound, bounded.answer)

    with pytest.raises(AssertionError, match="more than is claimed"):
        check_sensitivity(
            lambda A: RowQuery(A, clip_norm=1.0, adjacency="add_remove"), short, max_starts=60
        )


def wrong(answer=np.asarray, size=lambda A: 1.0):
    def release(A):
        bounded = RowQuery(A, clip_norm=size(A), adjacency="add_remove").gram()
        return Bounded(bounded.bound, lambda step: answer(bounded.answer(step)))

    return release


def fail(value):
    raise ZeroDivisionError("a private row")


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (wrong(lambda v: v.astype(float)), "int64"),
        (wrong(lambda v: v[:1]), "shape"),
        (wrong(np.triu), "symmetric"),
        (wrong(fail), "ZeroDivisionError"),
        (wrong(size=lambda A: 1.0 + A.shape[0]), "depends on private data"),
    ],
    ids=["floats", "shape", "symmetry", "exception", "bound"],
)
def test_answers_of_the_wrong_form(release, message):
    with pytest.raises(AssertionError, match=message):
        check_sensitivity(lambda A: A, release, max_starts=20, n_climb=0)


@pytest.mark.parametrize("form", FORMATS)
def test_formats_hold_the_same_matrix(form):
    A = X * (np.abs(X) > 0.5)
    B = FORMATS[form](A)
    assert np.array_equal(B.toarray() if sp.issparse(B) else B, A)
    assert np.isnan(FORMATS[form](np.array([[np.nan, 1.0]])).sum())


def test_order_invariance_sees_positions():
    def release(A):
        A = clean(A, -1, 1)
        weights = 1 + np.arange(len(A))[:, None] % 2
        bound = Bound("toy", (A.shape[1],), 2.0)
        return Bounded(bound, lambda step: np.asarray(np.rint(weights * A).sum(axis=0), np.int64))

    with pytest.raises(AssertionError, match="order of rows"):
        check_order_invariance(lambda A: A, release, data=X)
    check_order_invariance(lambda A: A, release, data=X, permute=False)


def test_lazy():
    def eager(A):
        value = np.asarray(np.rint(clean(A, -1, 1).sum(axis=0) / STEP), np.int64)
        return Bounded(Bound("toy", value.shape, 2.0), lambda step: value)

    def lazy(A):
        bound = Bound("toy", (A.shape[1],), 2.0)
        return Bounded(bound, lambda step: np.rint(clean(A, -1, 1).sum(axis=0)).astype(np.int64))

    check_charge_before_read(lambda A: A, lazy, data=X)
    with pytest.raises(AssertionError, match="before it was paid"):
        check_charge_before_read(lambda A: A, eager, data=X)

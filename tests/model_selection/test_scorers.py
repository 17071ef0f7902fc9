"""Private scores: unbiased, bounded, silent, and equal for fast and slow computations."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from skdp import (
    DPPCA,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
    DPTruncatedSVD,
    PrivacyError,
    PrivacyLedger,
)
from skdp.model_selection import PrivateScorer, _scorers, make_private_scorer
from skdp.preprocessing import RowClipper
from skdp.privacy.accounting.losses import mu_from_epsilon_delta
from skdp.queries.regression import LossQuery
from skdp.regression import DPPersonalizedRegressor
from skdp.testing import record_transcript, replay_answers, seeded_entropy
from skdp.units import UNITS
from tools.outcomes import refuses

# Tiny fits find little; the tests of the estimators cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2000, 4)) / 3
Y = X[:, 0] + 0.1 * RNG.standard_normal(2000)
SQUARED = make_private_scorer("squared_error", (0.0, 1.0))
OWN = lambda _, rows, y: np.exp(rows[:, 0])  # noqa: E731


class Constant:
    """A model that is public."""

    def predict(self, X):
        return np.full(len(X), 0.25)


def exact_loss(scorer, *data, **groups):
    """Return (sum of losses before the noise, its opening)."""
    with record_transcript() as transcript:
        scorer(*data, **groups)
    (opening,) = (o for o in transcript if o.bound.name == "loss_sum")
    return float(np.ravel(opening.exact)[0]) * opening.step, opening


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(
    ("loss", "bounds"), [("squared_error", (0, 2)), ("absolute_error", (0, 1))]
)
def test_score_is_the_mean_loss_up_to_its_noise(loss, bounds, adjacency):
    power = {"squared_error": 2, "absolute_error": 1}[loss]
    truth = np.mean(np.clip(np.abs(Y - 0.25) ** power, *bounds))
    scorer = make_private_scorer(loss, bounds, adjacency=adjacency, epsilon=2.0)
    with seeded_entropy(0), record_transcript() as transcript:
        scores = [scorer(Constant(), X, Y) for _ in range(40)]
    names = ["loss_count", "loss_sum"] if adjacency == "add_remove" else ["loss_sum"]
    *counts, sums = transcript.openings[: len(names)]
    scale = sums.noise_scale / len(X)
    for count in counts:
        off_middle = truth - sum(bounds) / 2
        scale = math.hypot(scale, off_middle * count.noise_scale / len(X))
    assert abs(np.mean(scores) + truth) < 6 * scale / math.sqrt(40)
    assert 0.5 * scale < np.std(scores) < 1.6 * scale
    assert [o.bound.name for o in transcript][: len(names)] == names
    width = bounds[1] - bounds[0]
    expected = width / 2 if adjacency == "add_remove" else width
    assert sums.bound.l2 == pytest.approx(expected)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (DPTraceRegressor(1, epsilon=20.0), "squared_error"),
        (DPPCA(2, clip_norm=1.0), "reconstruction"),
        (DPTruncatedSVD(2, clip_norm=1.0, epsilon=20.0), "reconstruction"),
        (DPPCA(2, clip_norm=1.0), "share_lost"),
        (DPPCA(2, clip_norm=1.0, whiten=True), "share_lost"),
        (DPTruncatedSVD(2, clip_norm=1.0, epsilon=20.0), "share_lost"),
        (make_pipeline(DPPCA(2, clip_norm=1.0), DPTraceRegressor(1)), "squared_error"),
    ],
)
def test_fast_and_slow_ways_agree(model, loss):
    model.fit(X, Y)

    def slow(model, x, y):
        if loss != "squared_error":
            lost = np.sum((x - model.inverse_transform(model.transform(x))) ** 2, axis=1)
            whole = np.sum((x - getattr(model, "mean_", 0.0)) ** 2, axis=1)
            return lost if loss == "reconstruction" else lost / np.maximum(whole, 1e-300)
        return (y - model.predict(x)) ** 2

    factors = (X[:300], np.ones((300, 1))) if isinstance(model, DPTraceRegressor) else X[:300]
    exact = [
        exact_loss(make_private_scorer(each, (0.0, 1.0)), model, rows, Y[:300])[0]
        for each, rows in ((loss, X[:300]), (slow, factors))
    ]
    assert exact[0] == pytest.approx(exact[1], rel=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("loss", ["reconstruction", "share_lost"])
def test_sparse_rows(loss):
    model = DPTruncatedSVD(2, clip_norm=1.0).fit(X)
    scorer = make_private_scorer(loss, (0.0, 1.0))
    forms = (X, sp.csr_array(X), sp.csc_matrix(X))
    assert len({exact_loss(scorer, model, rows)[0] for rows in forms}) == 1


def test_a_score_is_seen_in_answers_alone():
    model, scorer = DPPCA(2, clip_norm=1.0).fit(X), make_private_scorer("share_lost", (0.0, 1.0))
    with record_transcript() as first:
        score = scorer(model, X)
    with replay_answers(first):
        assert scorer(model, X[:-9]) == score


@pytest.mark.thorough
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_share_is_that_of_the_row_alone_at_any_scale(form):
    """Bit by bit independent of other rows, in [0, 1], and 0 for rows of distance 0."""
    model = DPPCA(2, clip_norm=1.0).fit(X)
    rows = X[:40] * 10.0 ** RNG.uniform(-150, 150, (40, 1))
    rows[7] = 0.0
    scorer = make_private_scorer("share_lost", (0.0, 1.0))
    together = scorer._losses_of(model, form(rows), None)()
    alone = [scorer._losses_of(model, form(rows[[i]]), None)()[0] for i in range(40)]
    np.testing.assert_array_equal(together, alone)
    assert np.all((together >= 0) & (together <= 1 + 1e-9))
    centre = form(np.zeros((1, 4)) + model.mean_)
    assert scorer._losses_of(model, centre, None)()[0] == 0.0


@pytest.mark.parametrize("loss", ["reconstruction", "share_lost", "squared_error"])
def test_rows_that_are_not_finite_lose_as_much_as_each_other(loss):
    """None ends a score that was paid for, nor do no rows at all; also behind other steps."""
    behind = make_pipeline(RowClipper(), DPRidge(target_bounds=(-1, 1)))
    model = (behind if loss == "squared_error" else DPPCA(2, clip_norm=1.0)).fit(X, Y)
    exact = set()
    for bad in ([np.nan] * 4, [np.inf] * 4, [3.0, -np.inf, 3.0, 3.0], [np.nan, 1e12, 1e12, 1e12]):
        rows = X[:100].copy()
        rows[5] = bad
        exact.add(exact_loss(make_private_scorer(loss, (0.0, 1.0)), model, rows, Y[:100])[0])
    assert max(exact) - min(exact) <= (loss == "squared_error")  # the clipper has numbers for some
    for rows, y in ((X[:0], Y[:0]), (X[:99], ["a list of text"] * 99)):
        assert -1.0 <= make_private_scorer(loss, (0.0, 1.0))(model, rows, y) <= 0.0


def test_errors_of_private_rows_are_not_shown_and_public_ones_are():
    def picky(model, x, y):
        if x[0, 0] > 0.9 or y[0] in Y:
            raise Exception(f"the private value {x}")
        return x[:, 0]

    assert -1 <= make_private_scorer(picky, (0.0, 1.0))(Constant(), X, Y) <= 0
    with record_transcript() as transcript, pytest.raises(AttributeError, match="no_such"):
        make_private_scorer(lambda m, x, y: m.no_such(x), (0.0, 1.0))(Constant(), X, Y)
    refuses(ValueError, "needs y", SQUARED, Constant(), X)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0)).fit(frame, Y)
    with PrivacyLedger(epsilon=9.0) as ledger:
        refuses(ValueError, "feature names", SQUARED, model, frame[["b", "a", "c", "d"]], Y)
        refuses(AttributeError, "no attribute 'predict'", SQUARED, object(), frame, Y)
    assert not len(transcript) and not ledger.entries


@pytest.mark.thorough
@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame])
def test_a_model_that_takes_no_zeros_is_scored(form):
    """What fails for all rows alike fails for a row of ones, too; the error is that of zeros."""
    rows, y = 1 + np.arange(30)[:, None] % [1, 2, 3, 3], Y[:30]  # each is predicted apart
    ridge = DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0))
    for step in (FunctionTransformer(np.log), OneHotEncoder(categories=[[1, 2, 3]] * 4)):
        model = make_pipeline(step, ridge).fit(form(rows), y)
        assert -1 <= SQUARED(model, form(rows), y) <= 0
    model = make_pipeline(OneHotEncoder(categories=[[2]] * 4), ridge).fit(form(0 * rows + 2), y)
    refuses(ValueError, r"categories \[.*0", SQUARED, model, form(rows), y)


BOUNDS = (0, np.inf), (1, 0), (0, np.nan), 1.0, (False, True), (0, 1e61), (1e9, 1e9 + 1e-6)


@pytest.mark.parametrize(
    ("params", "match"),
    [({"loss": "r2"}, "R\\^2 and AUC"), ({"adjacency": "swap"}, "adjacency"),
     ({"privacy_unit": "spectral"}, "privacy_unit"), *(({"bounds": b}, "bounds") for b in BOUNDS)],
)  # fmt: skip
def test_bad_scorers(params, match):
    params = {"loss": "squared_error", "bounds": (0.0, 1.0)} | params
    with pytest.raises(ValueError, match=match):
        make_private_scorer(params.pop("loss"), params.pop("bounds"), **params)


def test_users_need_groups_and_norms_have_no_score():
    scorer = make_private_scorer("squared_error", (0.0, 1.0), privacy_unit="group")
    refuses(ValueError, "groups", scorer, Constant(), X, Y)
    rows = np.column_stack([np.arange(len(X)) % 50, X])
    personal = DPPersonalizedRegressor(1, group_column=0).fit(rows, Y)
    for model in (personal, make_pipeline(personal)):
        refuses(PrivacyError, "public_copy", SQUARED, model, rows, Y)
    assert -1 <= SQUARED(personal.public_copy(), rows[:60], Y[:60]) <= 0
    assert -1 <= scorer(Constant(), X, Y, groups=np.arange(len(X)) % 50) <= 0
    assert isinstance(scorer, PrivateScorer)
    assert repr(scorer) == "make_private_scorer('squared_error', (0.0, 1.0))"
    assert scorer.private_losses[0].kind == "gaussian"
    refuses(ValueError, "inconsistent", SQUARED, Constant(), X, Y[:-1])


@pytest.mark.parametrize(("loss", "power"), [("squared_error", 2), ("absolute_error", 1)])
def test_a_score_is_of_losses_about_the_middle_of_their_bounds(loss, power):
    expected = np.clip(np.abs(Y[:60] - 0.25) ** power, 0.1, 0.5) - 0.3
    found = exact_loss(make_private_scorer(loss, (0.1, 0.5)), Constant(), X[:60], Y[:60])[0]
    assert found == pytest.approx(expected.sum(), abs=0.001)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("model", [Constant(), DPRidge(epsilon=2.0)], ids=["slow", "fast"])
def test_an_empty_fold_scores_like_any_other(model, adjacency):
    params = {"adjacency": adjacency, "epsilon": 0.3, "delta": 1e-5}
    scorer = make_private_scorer("squared_error", (0.0, 1.0), **params)
    assert scorer.private_losses[0].value == pytest.approx(mu_from_epsilon_delta(0.3, 1e-5))
    model = model.fit(X, Y) if hasattr(model, "fit") else model
    assert exact_loss(scorer, model, X[:0], Y[:0])[0] == 0.0  # noise alone


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("unit", ["row", "group", "label", "entry", "interaction"])
def test_a_bound_is_what_a_unit_moves(unit, adjacency):
    """A unit that is changed, or that is there or not, moves its loss by as much as that."""
    scorer = make_private_scorer("absolute_error", (0, 3), adjacency=adjacency, privacy_unit=unit)
    k = 5 if unit == "group" else 1  # rows of the first unit, which count by their mean
    groups = {"groups": np.maximum(np.arange(40), k - 1)} if unit == "group" else {}
    low, high = (
        exact_loss(scorer, Constant(), X[:40], np.r_[[first] * k, Y[: 40 - k]], **groups)
        for first in (0.25, 100.0)  # losses of 0 and 3
    )
    changes = [abs(low[0] - high[0])]
    if adjacency == "add_remove" and unit in ("row", "group"):
        fewer = {name: of_rows[k:] for name, of_rows in groups.items()}
        gone, _ = exact_loss(scorer, Constant(), X[k:40], Y[: 40 - k], **fewer)
        changes = [abs(with_it - gone) for with_it, _ in (low, high)]
    bound = low[1].bound.l2
    assert 0.99 * bound <= max(changes) <= bound * (1 + 1e-6)


def test_a_mean_is_over_units_whose_number_is_public():
    """How many rows they have is not."""
    users = np.arange(40) // 5
    scorer = make_private_scorer("squared_error", (0.0, 1.0), adjacency="replace")
    for unit, groups, n in (("row", None, 40), ("label", None, 40), ("group", users, 8)):
        assert scorer._query(Constant(), X[:40], Y[:40], groups, UNITS[unit], False)[1] == n


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "loss"), [(LinearRegression(), "squared_error"), (LogisticRegression(), "zero_one")]
)
def test_unknown_models_are_evaluated_row_by_row(model, loss):
    y = Y if loss == "squared_error" else np.where(Y > 0, "yes", "no")
    found = model.fit(X, y).predict(X[:300])
    lost = np.mean(found != y[:300]) if loss == "zero_one" else 0.01
    scorer = make_private_scorer(loss, (0.0, 1.0), epsilon=20.0)
    assert scorer(model, X[:300], y[:300]) == pytest.approx(-lost, abs=0.05)
    scorer.privacy_unit = "edge"
    refuses(PrivacyError, "no private score", scorer, model, X, y)


def test_text_in_an_object_array_is_scored_in_a_batch(monkeypatch):
    y = np.where(Y > 0, "yes", "no").astype(object)  # as pandas gives it
    model = DPRidgeClassifier(clip_norm=1.0, classes=["no", "yes"]).fit(X, y)
    scorer = make_private_scorer("zero_one", (0.0, 1.0))
    monkeypatch.setattr(_scorers, "each_row", None)
    assert exact_loss(scorer, model, X, y)[0] == exact_loss(scorer, model, X, y.astype(str))[0]


@pytest.mark.thorough("loss")
@pytest.mark.parametrize("n_targets", [1, 4])
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "zero_one", OWN])
def test_a_row_has_one_loss_whatever_the_shape_of_y(loss, n_targets):
    targets = np.repeat(Y[:, None], n_targets, axis=1) + 5.0  # a column next to n predictions too
    model = DPRidge(clip_norm=1.0, target_bounds=(-9, 9)).fit(X, targets)
    scorer = make_private_scorer(loss, (0.0, 1.0))

    def total(rows, y):
        return scorer._query(model, rows, y, None, UNITS["row"], True)[0].total()

    data = X[:40].tolist(), targets[:40].tolist()
    bounded = total(*data)
    for bad in (0.0, "text", 1j, b"bytes", None):  # one that is no number takes out its row alone
        for row, target in ((bad, 5.0), (0.0, bad)):
            more = total([*data[0], [row] * 4], [*data[1], [target] * n_targets])
            assert abs(float(more.answer(0.0) - bounded.answer(0.0))) <= bounded.bound.l2


@pytest.mark.parametrize("loss", ["squared_error", "reconstruction"])
def test_no_bit_of_a_loss_depends_on_how_a_table_lies_in_memory(loss):
    """One row lies in both orders: in a table by columns its numbers would be added otherwise."""
    method, each = _scorers.SCORER_LOSSES[loss]
    tables = np.asfortranarray(RNG.standard_normal((20, 90))), np.zeros((20, 90), order="F")

    def losses(truth, found):
        return _scorers._by_row(method, each, truth, truth, found)

    alone = [losses(*(table[[i]] for table in tables)) for i in range(20)]
    np.testing.assert_array_equal(losses(*tables), np.concatenate(alone))


def test_a_score_that_fails_when_something_was_read_is_paid(monkeypatch):
    scorer, model = make_private_scorer("squared_error", (0.0, 1.0)), Constant()
    monkeypatch.setattr(LossQuery, "total", lambda _: 1 / 0)  # the count was read before
    with PrivacyLedger(9, 1e-5) as ledger:
        refuses(ZeroDivisionError, "zero", scorer, model, X, Y)
    assert 0.3 < ledger.spent.epsilon < 0.5


def test_a_score_whose_count_cannot_be_rounded_spends_nothing():
    scorer = make_private_scorer("zero_one", (0, 1), epsilon=7e-9, delta=0.0)
    with PrivacyLedger(9, 1e-5) as ledger:
        refuses(ValueError, "budget is too small .*'loss_count'", scorer, Constant(), X, Y)
    assert not ledger.entries


def test_other_targets_and_more_losses_than_rows_are_refused():
    model = DPRidge(clip_norm=1.0, target_bounds=(-9, 9)).fit(X, np.column_stack([Y, Y]))
    refuses(ValueError, "target", SQUARED, model, X, Y)
    query = LossQuery(lambda: np.zeros(6), lambda: 3, (0.0, 1.0), adjacency="add_remove")
    refuses(ValueError, "one number", query.total().answer, 0.0)


def test_targets_of_another_kind_than_the_predictions_are_refused():
    """Every loss would be the middle of its bounds; the dtype of an array is public."""
    X = np.linspace(-1, 1, 400).reshape(100, 4)
    y, words = X[:, 0], np.where(X[:, 0] > 0, "yes", "no")
    ridge = DPRidge(epsilon=9.0, target_bounds=(-1, 1)).fit(X, y)
    classifier = DPRidgeClassifier(classes=["no", "yes"], epsilon=9.0).fit(X, words)
    for model, loss, wrong in (
        (ridge, "squared_error", words),
        (ridge, "absolute_error", pd.Series(words, dtype="string")),
        (classifier, "zero_one", y > 0),
    ):
        with record_transcript() as opened, pytest.raises(ValueError, match="needs y of"):
            make_private_scorer(loss, (0.0, 1.0))(model, X, wrong)
        assert not len(opened)
        make_private_scorer(loss, (0.0, 1.0))(model, X, wrong.tolist())  # whose kind is private


class _Coupled(RowClipper):
    """Looks at all rows that it is given."""

    def transform(self, X):
        return super().transform(X) * len(X)


def test_a_derived_class_gets_one_row_at_a_time():
    model = make_pipeline(_Coupled(), DPRidge(clip_norm=1.0, target_bounds=(-1, 1))).fit(X, Y)
    found = SQUARED._losses_of(model, X[:40], Y[:40])()
    np.testing.assert_array_equal(found[:39], SQUARED._losses_of(model, X[:39], Y[:39])())

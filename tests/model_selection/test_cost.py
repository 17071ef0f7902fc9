"""What scikit-learn's searches cost, and searches inside a ledger."""

import math
from functools import partial

import numpy as np
import pytest
from sklearn import model_selection
from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor, StackingRegressor, VotingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    GroupShuffleSplit,
    HalvingGridSearchCV,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
    RandomizedSearchCV,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline

import skdp
from skdp.exceptions import PrivacyWarning
from skdp.graph import DPSpectralEmbedding
from skdp.model_selection import (
    DPGridSearchCV,
    IndependentKFold,
    WithinGroupKFold,
    make_private_scorer,
    search_cost,
)
from skdp.model_selection._cost import planned_fit
from skdp.model_selection._splitters import sets_of
from skdp.privacy.accounting.losses import (
    Loss,
    delta_from_losses,
    epsilon_from_losses,
    epsilon_from_mu_delta,
)
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.recommend import DPRecommender
from tools.ledgers import REPLACE, SCORER, grid, mu_of, pca
from tools.outcomes import refuses

X = np.random.default_rng(0).standard_normal((90, 4)) / 4
USERS = np.arange(90) % 7


# -- the rule ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cv", "held"),
    [(None, 4), (3, 2), (KFold(4), 3), (KFold(4, shuffle=True), 3), (ShuffleSplit(6), 6),
     (RepeatedKFold(n_splits=3, n_repeats=2), 4), (TimeSeriesSplit(4), 4), (LeaveOneOut(), 89),
     (IndependentKFold(4), 3), ([(np.arange(50), np.arange(50, 90))], 1)],
)  # fmt: skip
@pytest.mark.parametrize("refit", [True, False])
def test_cost_follows_the_rule(cv, held, refit):
    model = pca(adjacency="replace", random_state=0 if refit else None)
    cost = search_cost(grid(cv, model, refit=refit), 90)
    assert cost.held == held
    assert cost.mu == pytest.approx(mu_of(0.5) * math.sqrt(3 * held + refit))
    assert cost._spent.sampler_tv_distance == 3 * (cost.n_splits + refit) * SAMPLER_DISTANCE
    assert cost.exact_scores and cost.seeded is refit


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_cost_is_not_exceeded_by_what_a_row_meets():
    """Count, fit by fit, the training sets that hold the row: the claim, and no more."""
    held = np.zeros(90)

    class Counting(skdp.DPPCA):
        def fit(self, X, y=None):
            held[X[:, 0].astype(int)] += self.budget_split != "auto" or 1
            return super().fit(X, y)

    rows = np.column_stack([np.arange(90.0), X])
    for cv in (KFold(4), RepeatedKFold(n_splits=3, n_repeats=2), TimeSeriesSplit(3)):
        held[:] = 0
        search = grid(cv, Counting(1, clip_norm=1.0, adjacency="replace"), scoring=lambda *_: 0.0)
        search.fit(rows)
        cost = search_cost(search, 90)
        assert held.max() == 3 * cost.held + 1


OF_REPLACE = pca(adjacency="replace")
PIPE = Pipeline([("a", OF_REPLACE), ("ab", skdp.DPTraceRegressor(1, adjacency="replace"))])
FIT, SCORE = mu_of(0.5) ** 2, mu_of(0.3) ** 2
DRAWN = {"n_components": [1, 2], "clip_norm": [1.0, 2.0]}
SIZES = [mu_of(epsilon) ** 2 for epsilon in (0.1, 2.0, 0.2)]
# (what is searched, mu**2 of all its fits and scores)
TOTALS = {
    "a refit costs what the dearest candidate does": (
        GridSearchCV(OF_REPLACE, {"epsilon": [0.1, 2.0, 0.2]}, cv=KFold(5)),
        4 * sum(SIZES) + max(SIZES),
    ),
    "parts of a pipeline": (
        GridSearchCV(PIPE, {"ab__max_iter": [1, 2]}, cv=KFold(3)),
        (2 * 2 + 1) * (FIT + mu_of(1.0) ** 2),
    ),
    "drawn, by a seed": (
        RandomizedSearchCV(OF_REPLACE, DRAWN, n_iter=2, cv=3, random_state=0), 5 * FIT,
    ),
    "private scores": (grid(KFold(4), scoring=REPLACE), 10 * FIT + 3 * SCORE),
    "scores of training sets": (
        grid(KFold(4), scoring=REPLACE, return_train_score=True), 10 * FIT + 12 * SCORE,
    ),
    "two of three": (
        grid(KFold(4), scoring={"a": REPLACE, "b": REPLACE, "c": lambda *_: 0.0}, refit="a"),
        10 * FIT + 6 * SCORE,
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.NoSignalWarning")
@pytest.mark.parametrize("step", ["", "pca__"])
def test_a_search_over_epsilon_outside_a_ledger_says_once_that_fits_add_up(step):
    model = Pipeline([("pca", pca())]) if step else pca()
    search = partial(GridSearchCV, scoring=lambda *_: 0.0, cv=KFold(2))
    with pytest.warns(PrivacyWarning) as said:
        search(model, {f"{step}epsilon": [0.1, 0.2, 2.0]}).fit(X)
    assert sum("clones of one DPPCA" in str(text.message) for text in said) == 1
    search(clone(model), {f"{step}n_components": [1, 2]}).fit(X)
    clone(model := pca()).__getstate__()  # sent to another process
    with pytest.warns(PrivacyWarning, match="clones of one DPPCA"):
        clone(model).set_params(epsilon=3.0).fit(X)


@pytest.mark.parametrize("what", TOTALS)
def test_fits_and_scores_add_up(what):
    search, total = TOTALS[what]
    cost = search_cost(search, 90)
    assert cost.mu**2 == pytest.approx(total)
    assert cost.exact_scores == ("score" not in what)
    if "training" in what:
        assert len(cost.fits) == 3 * 4 * (1 + 2)  # each fit, and its scores of both sets
    assert ("{'epsilon': 2.0}" in str(cost)) == ("dearest" in what)
    assert "epsilon=" in repr(cost)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
def test_a_huge_epsilon_is_counted_as_it_is_spent():
    """Whether it is split into copies: not that of a stream, nor any inside a ledger."""
    stream, inside = skdp.DPIncrementalPCA(2, epsilon=60.0), skdp.DPPCA(2, epsilon=60.0)
    for model in (stream, clone(inside)):
        assert model.fit(X).privacy_spent_.losses == planned_fit(model).losses
    with skdp.PrivacyLedger(1e4, 0.5):
        assert inside.fit(X).privacy_spent_.losses == planned_fit(inside).losses


def test_pure_parts_add_up():
    svd = skdp.DPTruncatedSVD(1, privacy_unit="entry", delta=0.0, epsilon=0.5)
    cost = search_cost(GridSearchCV(svd, {"n_iter": [1, 2]}, cv=3), 90)
    assert cost.losses == (Loss("pure", 0.5),) * 5
    assert cost.epsilon(0.0) == 2.5


CELLS = (np.random.default_rng(1).random((40, 40)) < 0.1).astype(float)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.filterwarnings("ignore:(delta=.*no less|.*no factors):UserWarning")
@pytest.mark.every_way
@pytest.mark.parametrize(
    "estimator",
    [
        skdp.DPTruncatedSVD(2, privacy_unit="interaction", algorithm="one_shot"),
        skdp.DPTruncatedSVD(2, privacy_unit="interaction"),
        skdp.DPTruncatedSVD(2, privacy_unit="entry", epsilon=6.0),
        skdp.DPTruncatedSVD(2, privacy_unit="interaction", algorithm="gram"),
        DPRecommender(privacy_unit="interaction"),
        DPRecommender(privacy_unit="interaction", algorithm="popularity"),
        DPRecommender(privacy_unit="interaction", algorithm="gram"),
        DPSpectralEmbedding(2, epsilon=4.0),
    ],
    ids=repr,
)
def test_fits_whose_shape_may_make_them_pure_are_not_counted_as_gaussian(estimator):
    """Neither kind has the smaller curve everywhere, so that the cost covers both."""
    X = np.maximum(CELLS, CELLS.T) - np.diag(np.diag(CELLS))
    cost = search_cost(estimator, 40, cv=5)
    spent = clone(estimator).fit(X).privacy_spent_
    assert cost.held == 4 + (estimator.privacy_unit == "edge")
    for delta in (1e-40, 1e-5, 1e-4):
        fits = epsilon_from_losses(spent.losses * cost.held, delta)
        assert fits <= cost.epsilon(delta) * (1 + 1e-9)
    kinds = {loss.kind for loss in spent.losses}
    if "gaussian" not in kinds:  # which was said of them
        assert fits > 1.2 * epsilon_from_mu_delta(2 * mu_of(estimator.epsilon), delta)


def test_a_private_search_inside_a_search():
    inner = DPGridSearchCV(pca(), {"n_components": [1, 2]}, SCORER, strategy="random_stopping")
    cost = search_cost(inner, 90, cv=IndependentKFold(3))
    assert cost.losses == (Loss("pure", 1.0), Loss("pure", 1.0), Loss("delta", 2e-6))


def test_users():
    model = skdp.DPPersonalizedRegressor(1, adjacency="replace")
    for cv, held in ((WithinGroupKFold(4), 4), (LeaveOneGroupOut(), 6), (IndependentKFold(4), 3)):
        cost = search_cost(GridSearchCV(model, {"n_components": [1, 2]}, cv=cv), 90, USERS)
        assert (cost.held, cost.unit) == (held, "group")
    # a user who is replaced may have more rows
    assert search_cost(model, 6, np.arange(6), cv=WithinGroupKFold(3)).held == 3


# -- refusals ------------------------------------------------------------------------------------

CLASSIFIER = skdp.DPPersonalizedClassifier(1, classes=[0, 1])
OF_LABELS = make_private_scorer(
    "squared_error", (0.0, 1.0), adjacency="replace", privacy_unit="label"
)
REFUSED = [
    (grid(KFold(4), scoring=SCORER), None, "the two do not add up"),
    (grid(KFold(4), scoring=OF_LABELS), None, "the two do not add up"),
    (grid(KFold(4), pca()), None, "adding one row changes the folds"),
    (grid(ShuffleSplit(4), pca()), None, "adding one row changes the folds"),
    (grid(StratifiedKFold(4)), None, "depend on the data of others"),
    (grid(iter([(np.arange(9), np.arange(9))])), None, "other sets each time"),
    (grid(GroupKFold(4)), USERS, "depend on the data of others"),
    (grid(WithinGroupKFold(4)), USERS, "depend on the data of others"),
    (grid(type("Sorted", (KFold,), {})(4)), None, "depend on the data of others"),
    (GridSearchCV(CLASSIFIER, {"n_components": [1]}, cv=3), USERS, "StratifiedKFold"),
    *(
        (GridSearchCV(skdp.DPPersonalizedRegressor(1, adjacency="replace"), {}, cv=cv), USERS,
         "depend on the data of others")
        for cv in (GroupKFold(3), KFold(3))
    ),
    (GridSearchCV(pca(), {"adjacency": ["add_remove", "replace"]}), None, "do not compose"),
    (
        GridSearchCV(skdp.DPTruncatedSVD(1, privacy_unit="spectral"), {"unit_bound": [1.0, 2.0]}),
        None,
        "do not compose",
    ),
    (RandomizedSearchCV(pca(), {"epsilon": [1, 2]}, n_iter=1), None, "random_state"),
    (HalvingGridSearchCV(pca(), {"n_components": [1]}), None, "selects by exact scores"),
]  # fmt: skip


@pytest.mark.parametrize(("search", "groups", "match"), REFUSED)
def test_what_cannot_be_counted_is_refused(search, groups, match):
    refuses(skdp.PrivacyError, match, search_cost, search, 90, groups)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("epsilon", [1.0, 100.0])  # or of copies, each with a sampler of its own
def test_the_cost_covers_the_sampler_as_receipts_do(epsilon):
    """Where delta is so small that the noise of the sampler differs from its law by more."""
    model = pca(adjacency="replace", epsilon=epsilon)
    spent = model.fit(X).privacy_spent_
    cost = search_cost(model, 90, cv=[(np.arange(50), np.arange(50, 90))])
    assert cost._spent.sampler_tv_distance == spent.sampler_tv_distance
    for delta in (1e-6, 1e-15, 1e-19, 1e-23):
        assert cost.epsilon(delta) >= spent.epsilon_at(delta)
    assert cost.epsilon(1e-23) == math.inf
    for bad in (-1e-9, 1.0, math.nan):
        refuses(ValueError, "delta", cost.epsilon, bad)


@pytest.mark.parametrize("epsilon", [pytest.param(0.3, marks=pytest.mark.deep), 1.0, 4.0])
@pytest.mark.parametrize("method", ["two_sketch", "three_sketch", "dense"])
def test_random_sketches_are_not_counted_as_gaussian(method, epsilon):
    """They are (epsilon, delta)-DP like others, but not for any smaller delta or larger epsilon."""
    model = skdp.DPLowRankFactorizer(2, method=method, epsilon=epsilon)
    cost = search_cost(model, 90, cv=4)
    (loss,) = model.fit(1e4 * np.eye(60, 2) @ np.eye(2, 40)).privacy_spent_.losses
    assert loss.kind == ("gaussian" if method == "dense" else "sketch")
    for at in (epsilon, 1.5 * epsilon, 4 * epsilon):
        one = delta_from_losses(cost.candidates[0][1], at)
        assert delta_from_losses([loss], at) <= one * (1 + 1e-9)
    together = epsilon_from_losses([loss] * cost.held, 1e-6 * cost.held)
    if method != "three_sketch":  # of which the exact law has no delta so small
        assert together <= cost.epsilon(1e-6 * cost.held) * (1 + 1e-9)


@pytest.mark.parametrize("state", [None, np.random.RandomState(0), np.random.default_rng(0)])
def test_what_is_drawn_anew_is_not_counted_by_one_draw(state):
    """The search draws again when it runs."""
    search = RandomizedSearchCV(OF_REPLACE, DRAWN, n_iter=1, cv=3, random_state=state)
    refuses(skdp.PrivacyError, "an int as 'random_state'", search_cost, search, 90)


def test_no_private_estimator_has_no_cost():
    with pytest.raises(ValueError, match="no private estimator"):
        search_cost(GridSearchCV(LogisticRegression(), {}), 90)


# -- cases that are easily miscounted --------------------------------------------------------------


def test_a_splitter_that_draws_anew_is_not_counted_by_one_draw():
    for state in (None, np.random.RandomState(0)):
        cv = ShuffleSplit(4, train_size=1, test_size=1, random_state=state)
        assert search_cost(pca(adjacency="replace"), 60, cv=cv).held == 4


def test_a_row_may_not_be_twice_in_a_training_set():
    rows = np.arange(20)
    for bad in ((rows[[0] * 5], rows[:3]), (rows[:3], rows[[0] * 5]), (rows[[0]], [0, -20])):
        with pytest.raises(skdp.PrivacyError, match="more than once"):
            search_cost(pca(adjacency="replace"), 20, cv=[(rows, rows), bad])
    masks = [(rows < 10, rows >= 10), (rows >= 10, rows >= 15)]
    cost = search_cost(pca(adjacency="replace"), 20, cv=masks)
    assert (cost.held, cost.scored) == (1, 2)


@pytest.mark.parametrize("unit", ["rank_one", "frobenius", "spectral", "edge"])
def test_a_change_of_some_norm_has_parts_in_all_folds(unit):
    """K copies of a row: the change of the whole is sqrt(K) times that in each fold, for K - 1."""
    for cv in (IndependentKFold(4), KFold(4), LeaveOneOut()):
        assert sets_of(cv, 4, None, unit, "zero_out") == (4, 4)
    assert sets_of(IndependentKFold(4), 4, None, "group", "add_remove") == (4, 4)  # rows are drawn
    if unit != "edge":
        svd = skdp.DPTruncatedSVD(1, privacy_unit=unit, unit_bound=2.0, epsilon=0.5)
        assert search_cost(grid(IndependentKFold(4), svd), 90).held == 4


def test_a_unit_is_counted_where_most_sets_hold_it():
    for cv, held in (
        (LeaveOneOut(), (49, 1)), (TimeSeriesSplit(4), (4, 1)),
        (RepeatedKFold(n_splits=3, n_repeats=2), (4, 2)),
    ):  # fmt: skip
        assert sets_of(cv, 50, None, "row", "replace") == held
    drawn = GroupShuffleSplit(4, test_size=1, train_size=1, random_state=None)
    assert sets_of(drawn, 9, np.arange(9), "label", "replace") == (4, 4)
    assert sets_of(GroupKFold(3), 9, np.arange(9), "label", "replace") == (2, 1)
    for name in (name for name in dir(model_selection) if "Stratified" in name):
        cv = getattr(model_selection, name)()
        refuses(skdp.PrivacyError, "of others", sets_of, cv, 9, np.arange(9), "label", "replace")


ADDED_GROUP = "group", "add_remove"


def test_folds_of_a_known_seed_move_with_a_row_or_a_group_in_front():
    for state in (0, np.random.default_rng(0), np.random.RandomState(0)):
        cv = IndependentKFold(3, random_state=state)
        refuses(skdp.PrivacyError, "random_state=None", search_cost, pca(), 50, cv=cv)
        refuses(skdp.PrivacyError, "random_state=None", sets_of, cv, 9, np.arange(9), *ADDED_GROUP)
        assert search_cost(pca(adjacency="replace"), 50, cv=cv).held == 2
    for cv in (LeaveOneGroupOut(), WithinGroupKFold(3)):
        refuses(skdp.PrivacyError, "folds of others", sets_of, cv, 9, np.arange(9), *ADDED_GROUP)
    refuses(ValueError, "depend on 'n_samples'", search_cost, pca(adjacency="replace"), cv=5)


@pytest.mark.parametrize(
    "many",
    [
        BaggingRegressor(skdp.DPRidge(), n_estimators=3),
        MultiOutputRegressor(skdp.DPRidge()),
        make_pipeline(StackingRegressor([("a", skdp.DPRidge())], final_estimator=skdp.DPRidge())),
        VotingRegressor([("a", MultiOutputRegressor(skdp.DPRidge())), ("b", skdp.DPRidge())]),
    ],
)
def test_who_fits_many_times_has_no_cost(many):
    refuses(skdp.PrivacyError, "how often", search_cost, many, 90, cv=IndependentKFold(3))
    voting = VotingRegressor([("a", skdp.DPRidge()), ("b", make_pipeline(skdp.DPRidge()))])
    cost = search_cost(voting, 90, cv=IndependentKFold(3))
    assert cost.mu == pytest.approx(2 * mu_of(1.0))  # two fits, two training sets


@pytest.mark.parametrize("delta", [1e-6, 1e-8])
def test_a_total_is_said_at_a_delta_at_which_there_is_one(delta):
    """Fits whose delta adds up have no epsilon at that of one fit; small deltas have."""
    model = skdp.DPTruncatedSVD(2, privacy_unit="interaction", epsilon=0.3, delta=delta)
    cost = search_cost(GridSearchCV(model, {"n_components": [1, 2]}, cv=3), n_samples=100)
    said = str(cost).splitlines()[-1]
    assert "inf" not in said and ("use a smaller 'delta'" in said) == (delta == 1e-6)
    at = float(said.split("delta=")[1].split()[0])
    assert f"epsilon={cost.epsilon(at):.4g}" in said and at == (6e-6 if delta == 1e-6 else 1e-6)

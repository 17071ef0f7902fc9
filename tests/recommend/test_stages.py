"""Interactions at small budgets: first counts are pure, and decide what the rest is."""

import functools
import math

import numpy as np
import pytest
from sklearn.base import clone

from skdp import PrivacyLedger
from skdp.answer import Answer
from skdp.datasets import make_histories
from skdp.exceptions import PrivacyWarning
from skdp.model_selection import leave_some_out, search_cost
from skdp.privacy.accounting.losses import Loss, epsilon_from_losses
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.reservations import RunLimit
from skdp.queries.interactions import gram_change
from skdp.recommend import DPRecommender, _routes, recall_at_n
from skdp.solvers import recommend
from skdp.solvers.recommend import Route, buy_counts, worth_a_look
from skdp.testing import checks, fixed_noise, seeded_entropy

pytestmark = pytest.mark.filterwarnings("ignore:delta=.*no less:skdp.exceptions.PrivacyWarning")
SHORT = make_histories(1000, 800, mean_length=20, overlap=1.0, random_state=0)
LONG = make_histories(
    1200, 800, mean_length=120, n_tastes=6, overlap=0.1, spread=3.0, tail=0.7, random_state=0
)
half = functools.partial(DPRecommender, privacy_unit="interaction", epsilon=0.5)


def kinds(model):
    return [(line.name, line.loss.kind) for line in model.ledger_]


def test_short_histories_take_pure_counts_and_long_ones_a_moment():
    with seeded_entropy(0):
        short, long = half().fit(SHORT), half().fit(LONG)
    assert kinds(short) == [("counts", "pure")] * 2
    assert short.counts_noise_scale_ < 1.2 * math.sqrt(2) / 0.5
    assert short.rank_ == 0 and short.route_.startswith("gram")
    assert kinds(long)[0] == ("counts", "pure") and ("gram", "gaussian") in kinds(long)
    assert long.rank_ > 0
    assert short.privacy_spent_ == long.privacy_spent_  # which way it was is not in a receipt
    assert (short.privacy_spent_.epsilon, short.privacy_spent_.delta) == (0.5, 1e-6)


@pytest.mark.parametrize("params", [{"algorithm": "gram"}, {"epsilon": 2.0}, {"epsilon": math.inf}])
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
def test_elsewhere_there_are_no_stages(params):
    losses = half(**params).fit(SHORT).privacy_spent_.losses
    assert "delta" not in {loss.kind for loss in losses}


def test_fits_that_a_ledger_or_a_search_counts_have_no_stages():
    with PrivacyLedger(2.0, 1e-5) as ledger:
        assert {kind for _, kind in kinds(half().fit(SHORT))} == {"gaussian"}
        half().fit(LONG)
    assert {loss.kind for loss in ledger.spent.losses} == {"gaussian"}
    assert half()._checked_session(first=0.1).stages is not None
    running = routes.RUN.set(RunLimit("interaction", "add_remove", Loss("gaussian", 1.0)))
    try:
        assert half()._checked_session(first=0.1).stages is None
    finally:
        routes.RUN.reset(running)
    with PrivacyLedger(2.0, 1e-5):
        inside = clone(half())
    assert inside._checked_session(first=0.1).stages is None


def test_a_cross_validation_of_them_is_counted_as_such():
    """What a fit spends is decided by its shape and by answers: the sum covers all of it."""
    cost = search_cost(half(), n_samples=1000, cv=4)
    for algorithm in ("auto", "popularity", "one_shot", "gram"):
        spent = half(algorithm=algorithm).fit(SHORT).privacy_spent_.losses * cost.held
        assert epsilon_from_losses(spent, 1e-5) <= cost.epsilon(1e-5) * (1 + 1e-9)


@pytest.mark.filterwarnings("default:delta=.*no less:skdp.exceptions.PrivacyWarning")
def test_a_delta_that_is_too_large_is_said_where_first_counts_spend_none():
    R = make_histories(400, 400, mean_length=20, overlap=1.0, random_state=0)
    with pytest.warns(PrivacyWarning, match="delta=0.01 is no less than 1/400"):
        model = half(delta=1e-2).fit(R)
    assert "delta" in {loss.kind for loss in model.privacy_spent_.losses}


@pytest.mark.deep
@pytest.mark.parametrize("looks", [0.0, math.inf])
@pytest.mark.parametrize(
    "check",
    [
        checks.check_null_release, checks.check_receipt, checks.check_worst_case_pair,
        checks.check_pays_first, checks.check_bad_rows, checks.check_tiny_epsilon,
        checks.check_noise_calibration, checks.check_pickle_and_clone,
    ],
    ids=lambda check: check.__name__,
)  # fmt: skip
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_both_ways_keep_the_promise(monkeypatch, check, looks, adjacency):
    """Of small data too: any signal has stages, and none or each is worth a look."""
    for name, value in (("_LEAST_SIGNAL", 0.0), ("_CERTAIN_SIGNAL", math.inf), ("_MOST_FLIPS", 0)):
        monkeypatch.setattr(_routes, name, value)
    monkeypatch.setattr(recommend, "_LEAST_LOOK", looks)
    model = DPRecommender(2, privacy_unit="interaction", adjacency=adjacency)
    with fixed_noise(0):
        fitted = clone(model).fit(np.eye(12, 6))
    assert {loss.kind for loss in fitted.privacy_spent_.losses} == {"pure", "delta"}
    check("DPRecommender", model)


def test_first_counts_say_whether_histories_are_long_enough():
    def signal(degree, n_kept, share):
        floor = max(1, round(degree))
        return 1000 * 0.12 * share**0.5 / gram_change(max(n_kept, 2 * floor), floor, "add_remove")

    route = Route("gram", signal, lambda _: 4000, staged=True)
    falling = np.arange(1, 801.0) ** -0.8
    found = [
        worth_a_look(route, Answer(1000 * length * falling / falling.sum(), 28.0), 1000)
        for length in (0, 5, 10, 20, 40, 80, 200)
    ]
    assert found == sorted(found)
    assert not found[2] and found[-2]
    rng = np.random.default_rng(0)  # noise alone, whose largest parts look like long histories
    assert not worth_a_look(route, Answer(28.0 * rng.standard_normal(20_000), 28.0), 1000)


def test_counts_that_are_there_come_first():
    counts, asked = 2000 * np.arange(1, 501.0) ** -0.8, []

    def ask(share):
        asked.append(share)
        return Answer(counts, 20.0 / share**0.5)

    clear = buy_counts(ask, 1.0, "gram", Answer(counts, 2.0))
    assert (clear.spent, clear.noise_scale, clear.readable, asked) == (0.0, 2.0, True, [])
    unclear = buy_counts(ask, 1.0, "gram", Answer(counts, 4000.0))
    assert asked[0] == pytest.approx(0.2) and unclear.spent == pytest.approx(sum(asked))


@pytest.mark.deep
def test_small_tables_without_tastes_are_as_good_as_popularity():
    """Recall@20 beside that of counts at the whole budget: it was .003 less."""
    differences = []
    with seeded_entropy(0):
        for seed in range(12):
            R = make_histories(1000, 1700, mean_length=12, overlap=1.0, random_state=seed)
            known, held_out = leave_some_out(R, random_state=seed)
            found = [
                np.mean([
                    recall_at_n(half(algorithm=name).fit(known).recommend(known)[0], held_out)
                    for _ in range(3)
                ])
                for name in ("auto", "popularity")
            ]  # fmt: skip
            differences.append(found[0] - found[1])
    error = np.std(differences) / math.sqrt(len(differences))
    assert np.mean(differences) > -0.001 - 3 * error
    assert error < 0.001


def test_a_plan_says_both_stages():
    short = half().plan(1000, 800, nnz=12_000)
    assert [line.name for line in short.releases] == ["counts", "counts"]
    assert sum(line.share for line in short.releases) == pytest.approx(1.0)
    assert any("popularity only" in line for line in short.expected.assumptions)
    long = half().plan(1000, 800, nnz=120_000)
    assert "gram" in {line.name for line in long.releases}
    assert sum(line.share for line in long.releases) == pytest.approx(1.0, rel=1e-6)
    assert "delta=1e-06" in long.guarantee

"""Local reports: what a device says, and what a server makes of it."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import PrivacyLedger
from skdp.datasets import make_interactions
from skdp.exceptions import PrivacyWarning
from skdp.model_selection import leave_some_out
from skdp.recommend import LocalRecommender, LocalReporter, recall_at_n
from skdp.solvers.local_histories import fit_reports
from skdp.testing import fixed_noise, seeded_entropy

ITEMS = np.array([0, 2, 3, 7])


def reported(row, **params):
    """The cells of one report under fixed noise."""
    with fixed_noise(0):
        report = LocalReporter(ITEMS, **params).report(row)
    cells = np.zeros(report.n_cells, int)
    cells[report.ones] = 1
    return cells


@pytest.mark.deep
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_a_report_is_the_history_with_flips_of_the_stated_law(epsilon):
    truth = np.array([1.0, 0, 0, 1, 1, 1, 1, 0, 1])
    kept, total = truth[ITEMS], np.zeros(4)
    with seeded_entropy(0):
        reporter = LocalReporter(ITEMS, epsilon=epsilon)
        for _ in range(400):
            report = reporter.report(truth)
            total[report.ones] += 1
    p = 1 / (1 + math.exp(epsilon))
    expected = 400 * np.where(kept > 0, 1 - p, p)
    assert np.all(np.abs(total - expected) < 6 * math.sqrt(400 * p * (1 - p)))
    assert report.noise_scale == pytest.approx(math.sqrt(p * (1 - p)) / (1 - 2 * p), rel=1e-6)
    assert report.privacy_spent.epsilon == pytest.approx(epsilon)
    assert (report.privacy_spent.delta, report.privacy_spent.unit) == (0.0, "interaction")


def test_one_interaction_moves_one_cell_whose_odds_are_the_budget():
    """The proof by force: with the same flips neighbours differ in what differs, no more."""
    row = np.array([1.0, 1, 0, 1, 1, 0, 0, 0])
    for i in range(8):
        other = row.copy()
        other[i] = 1 - other[i]
        assert np.sum(reported(row) != reported(other)) == (i in ITEMS)
    moved = row.copy()
    moved[[0, 2]] = moved[[2, 0]]
    both = [reported(r, adjacency="replace") for r in (row, moved)]
    assert np.sum(both[0] != both[1]) == 2
    first, second = (
        LocalReporter(ITEMS, epsilon=epsilon, adjacency=adjacency).report(row).noise_scale
        for epsilon, adjacency in ((1.0, "add_remove"), (2.0, "replace"))
    )
    assert first == second  # two cells at half of the budget each


def test_what_is_not_reported_on_says_nothing():
    row = np.array([1.0, 1, 0, 1, 1, 0, 0, 0])
    other = np.array([1.0, 0, 0, 1, 0, 3, 9, 0])
    np.testing.assert_array_equal(reported(row), reported(other))
    np.testing.assert_array_equal(reported(row), reported(sp.csr_array(row[None])))
    np.testing.assert_array_equal(reported(row), reported(np.where(row > 0, 7.5, -2.0)))


def test_each_report_is_charged():
    with PrivacyLedger(3.0, 0.0) as ledger:
        reporter = LocalReporter(ITEMS, epsilon=1.0)
        reporter.report(np.ones(8))
        reporter.report(np.ones(8))
    assert ledger.spent.epsilon == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("items", "row", "message"),
    [
        ([], np.ones(8), "at least one"), ([[1]], np.ones(8), "item numbers"),
        ([0.5], np.ones(8), "item numbers"), ([-1, 2], np.ones(8), "from 0 on"),
        ([3, 1], np.ones(8), "ascending"), ([1, 1], np.ones(8), "each item once"),
        ([8], np.ones(8), "at least 9 items"), ([0], np.ones((2, 8)), "one history"),
    ],
)  # fmt: skip
def test_bad_reports_are_refused(items, row, message):
    with pytest.raises(ValueError, match=message):
        LocalReporter(items).report(row)


@pytest.fixture(scope="module")
def split():
    R = make_interactions(1500, 120, 30_000, 5, random_state=0)
    return leave_some_out(R, random_state=0)


def reports_of(R, epsilon):
    with seeded_entropy(0):
        reporter = LocalReporter(range(R.shape[1]), epsilon=epsilon)
        return [reporter.report(R[[u]]) for u in range(R.shape[0])]


def popularity_recall(train, test):
    scores = np.where(train.toarray() > 0, -np.inf, np.asarray(train.sum(axis=0)).reshape(-1))
    return recall_at_n(np.argsort(-scores, axis=1, kind="stable")[:, :20], test)


@pytest.mark.thorough
def test_the_server_reads_counts_and_tastes(split):
    train, test = split
    reports = reports_of(train, 4.0)
    model = LocalRecommender(range(120), 120, 8).fit(reports)
    exact = np.asarray(train.sum(axis=0)).reshape(-1)
    assert np.all(np.abs(model.counts_ - exact) < 6 * model.counts_noise_scale_)
    assert model.counts_noise_scale_ == pytest.approx(reports[0].noise_scale * 1500**0.5)
    assert recall_at_n(model.recommend(train)[0], test) > popularity_recall(train, test) + 0.05
    assert model.rank_ and model.blend_ > 0
    assert model.privacy_spent_.epsilon == pytest.approx(4.0)
    assert not model.privacy_spent_.seeded
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.recommend(train)[0], model.recommend(train)[0])


@pytest.mark.thorough
def test_where_tastes_are_none_the_order_is_that_of_the_counts():
    R = make_interactions(1500, 120, 15_000, 2, taste_share=0.0, random_state=1)
    train, test = leave_some_out(R, random_state=0)
    model = LocalRecommender(range(120), 120, 8).fit(reports_of(train, 3.0))
    assert recall_at_n(model.recommend(train)[0], test) > popularity_recall(train, test) - 0.01


@pytest.mark.thorough
def test_some_items_of_a_catalogue():
    R = make_interactions(400, 60, 6000, 3, random_state=0)
    items = np.arange(5, 45)
    with seeded_entropy(0):
        reporter = LocalReporter(items, epsilon=5.0)
        reports = [reporter.report(R[[u]]) for u in range(400)]
    model = LocalRecommender(items, 60, 4).fit(iter(reports))
    assert np.all(model.counts_[:5] == 0) and np.all(model.counts_[45:] == 0)
    lists, _ = model.recommend(R[:30], n=20)
    assert np.isin(lists, items).mean() > 0.9
    assert model.item_similarity(10, 5)[0].shape == (5,)


def test_mixed_reports_are_refused():
    one = LocalReporter(ITEMS, epsilon=1.0).report(np.ones(8))
    two = LocalReporter(ITEMS, epsilon=2.0).report(np.ones(8))
    short = LocalReporter(ITEMS[:2], epsilon=1.0).report(np.ones(8))
    for reports in ([one, two], [one, short], []):
        with pytest.raises(ValueError, match="report"):
            LocalRecommender(ITEMS, 8).fit(reports)
    with pytest.raises(ValueError, match="n_items"):
        LocalRecommender(ITEMS, 5).fit([one])
    with pytest.raises(ValueError, match="8 items"):
        LocalRecommender(ITEMS, 8, 2).fit([one] * 10).recommend(np.ones((1, 4)))


@pytest.mark.parametrize("ones", [[1, 1], [2, 1], [-1], [4], [0.5], [[0, 1]]])
def test_a_forged_report_is_refused(ones):
    """Nobody votes twice for an item: a report from elsewhere is a list of places."""
    reporter = LocalReporter(range(4), epsilon=1.0)
    reports = [reporter.report([1, 0, 0, 1]) for _ in range(5)]
    forged = dataclasses.replace(reports[0], ones=np.array(ones))
    with pytest.raises(ValueError, match="names cells that are not among its items, or one"):
        LocalRecommender(range(4), 4, 1).fit([*reports, forged])


def test_a_seeded_report_says_so_and_marks_the_model():
    with pytest.warns(PrivacyWarning):
        seeded = LocalReporter(ITEMS, epsilon=1.0, random_state=0).report(np.ones(8))
    plain = LocalReporter(ITEMS, epsilon=1.0).report(np.ones(8))
    assert LocalRecommender(ITEMS, 8, 2).fit([plain, seeded]).privacy_spent_.seeded


def test_without_noise_tastes_are_judged_by_what_they_find(split):
    """The choice from one half of the items to the other, where all is known."""
    train, _ = split
    found = fit_reports(sp.csr_array(train), 0.0, np.arange(120), 120, 8, 0.25)
    assert found.filter.blend > 0
    np.testing.assert_allclose(found.counts.value, train.sum(axis=0))
    rng = np.random.default_rng(0)
    popular = np.arange(1, 121.0) ** -0.7 / 2
    alone = sp.csr_array((rng.random((1500, 120)) < popular).astype(float))
    assert fit_reports(alone, 0.0, np.arange(120), 120, 8, 0.25).filter.blend == 0.0

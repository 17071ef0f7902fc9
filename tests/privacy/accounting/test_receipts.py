"""Messages of receipts and plans about weak guarantees."""

import math
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import skdp
from skdp.exceptions import PrivacyWarning
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.accounting.receipts import aligned, cautions
from skdp.recommend import DPRecommender
from tools.outcomes import messages_of

X = np.random.default_rng(0).standard_normal((400, 3))


def test_a_usual_promise_needs_no_caution():
    assert cautions(10.0, 1e-6, "row", 10_000) == ()
    assert cautions(math.inf, 0.0, "row") == ()  # which is stated as such
    assert "Caution" not in str(skdp.DPPCA(1).plan(400, 3))


@pytest.mark.deep
def test_a_large_epsilon_is_stated_by_plans_reports_and_fits():
    pca = skdp.DPPCA(1, epsilon=100.0, clip_norm=1.0)
    assert "e^100 times as likely with one row" in str(pca.plan(400, 3))
    assert "e^100 times as likely" in str(pca.fit(X).privacy_report())
    with pytest.warns(PrivacyWarning, match="gives almost no protection"):
        skdp.DPPCA(1, epsilon=1e6, clip_norm=4.0).fit(X)


@pytest.mark.deep
def test_a_large_delta_is_said_where_the_number_of_rows_is_public():
    said = "delta=0.01 is too large: publishing one random row of 400"
    assert said in str(skdp.DPPCA(1, delta=0.01).plan(400, 3))
    assert not skdp.DPPCA(1, delta=0.001).plan(400, 3).cautions


def _graph():
    upper = np.triu(np.random.default_rng(0).random((40, 40)) < 0.2, 1)
    return (upper + upper.T).astype(float)


PERSONS = np.arange(400) // 20
ROWS = {"adjacency": "replace", "clip_norm": 4.0}
BOUNDS = ROWS | {"privacy_unit": "group"}
COUNTED = [
    (skdp.DPPCA(1, **ROWS), (X,), "random row of 400"),
    (skdp.DPRidge(**ROWS, target_bounds=(-1, 1)), (X, X[:, 0]), "random row of 400"),
    (skdp.DPPCA(1, **BOUNDS), (X, None, PERSONS), "random group of 20"),
    (skdp.DPRidge(**BOUNDS, target_bounds=(-1, 1)), (X, X[:, 0], PERSONS), "random group of 20"),
    (DPStandardScaler(privacy_unit="group", adjacency="replace", bounds=(-1, 1)),
     (X, None, PERSONS), "random group of 20"),
    (skdp.DPPersonalizedRegressor(1, adjacency="replace"),
     (X, X[:, 0], PERSONS), "random group of 20"),
    (skdp.DPTraceRegressor(1, privacy_unit="label"), (X, X[:, 0]), "random label of 400"),
    (skdp.DPTruncatedSVD(1, privacy_unit="interaction", algorithm="gram"),
     (_graph(),), "random cell of 40"),
    (skdp.DPSpectralEmbedding(1, algorithm="power"), (_graph(),), "random pair of nodes of 40"),
    (skdp.DPLowRankFactorizer(1, privacy_unit="entry", method="two_sketch"),
     (X,), "random cell of 400"),
    (skdp.DPLowRankFactorizer(1, privacy_unit="row", adjacency="replace"),
     (X,), "random row of 400"),
    (DPRecommender(1, adjacency="replace"), (_graph(),), "random row of 40"),
    (skdp.DPScoreDensity(axes=np.eye(3)[:2], adjacency="replace"), (X,), "random row of 400"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "data", "said"),
    COUNTED,
    ids=lambda value: value[:12] if isinstance(value, str) else type(value).__name__,
)
def test_fits_warn_where_the_number_of_units_is_public(estimator, data, said):
    """Persons under "replace", labels next to public rows, cells and pairs of a public shape."""
    for delta, expected in ((0.06, True), (1e-6, False)):
        said_of_it = messages_of(clone(estimator).set_params(delta=delta).fit, *data)
        assert any(f"{said} would satisfy it" in text for text in said_of_it) == expected


def test_records_streams_and_graphs_warn_of_their_public_number():
    trace = skdp.DPTraceRegressor(1, adjacency="replace", delta=0.06)
    stream = skdp.DPLowRankFactorizer(1, privacy_unit="entry", matrix_shape=X.shape, delta=0.06)
    graph = skdp.DPSpectralEmbedding(1, epsilon=20.0, delta=0.06)  # of a delta that may be used
    for fit, data, of in (
        (trace.fit, (X, X[:, 0]), "row of 400"), (stream.update, ([0], [0], [1.0]), "cell of 400"),
        (graph.fit, (np.full((200, 200), 0.5),), "pair of nodes of 200"),
    ):  # fmt: skip
        assert any(f"random {of} would satisfy it" in text for text in messages_of(fit, *data))


def test_nothing_is_said_of_private_numbers_and_of_a_delta_that_is_not_spent():
    graph, spent, rows = _graph(), [], np.tile(X, (5, 1))
    for estimator, data in [
        (skdp.DPPCA(1, delta=9e-4, clip_norm=4.0), (rows,)),
        (
            skdp.DPTruncatedSVD(1, delta=0.06, privacy_unit="interaction", algorithm="one_shot"),
            (graph,),
        ),
        (skdp.DPLowRankFactorizer(1, delta=9e-4, privacy_unit="frobenius"), (rows,)),
        (skdp.DPLowRankFactorizer(1, delta=0.06, privacy_unit="entry"), (X,)),
    ]:
        assert not any("is too large: p" in text for text in messages_of(estimator.fit, *data))
        spent.append(estimator.privacy_spent_.delta)
    assert spent == [9e-4, 0.0, 9e-4, 0.0]
    with pytest.warns(PrivacyWarning, match="publishing one random row of 1000 would"):
        skdp.DPPCA(1, delta=0.001, clip_norm=4.0).fit(rows)


def test_a_receipt_in_print_says_what_it_is_of():
    """One of ten fits of a search has the receipt of one fit."""
    X = np.random.default_rng(0).standard_normal((3000, 3))
    search = GridSearchCV(
        skdp.DPRidge(clip_norm=1.0, target_bounds=(-1, 1)), {"alpha": [1.0, 9.0]}, cv=2
    )
    spent = search.fit(X, X[:, 0]).best_estimator_.privacy_spent_
    assert str(spent) == "(epsilon=1, delta=1e-06) row, by this fit alone"
    assert spent.statement().endswith(", by this fit alone.")
    assert len(repr(spent)) <= 30


def test_a_report_says_what_the_budget_was_for():
    report = skdp.DPPCA(1).fit(np.random.default_rng(0).standard_normal((3000, 3)) * [4, 1, 1])
    report = report.privacy_report()
    rows = [line for line in str(report).splitlines() if "%" in line]
    assert len({entry.name for entry in report.ledger}) > len(rows) > 3
    assert sum(float(re.search(r"([\d.]+)%", row)[1]) for row in rows) == pytest.approx(
        100, abs=0.5
    )
    assert sum(int(re.search(r"  (\d+) ", row)[1]) for row in rows) == len(report.ledger)
    assert all(entry.name in report.details() for entry in report.ledger)
    assert "<summary>" in report._repr_html_()


# -- tables as text --------------------------------------------------------------------------------


def test_columns_stand_below_each_other():
    rows = [("release", "share", "note"), ("sum", "12.5%", ""), ("a long one", "5%", "twice")]
    assert aligned(rows) == [
        "release     share  note",
        "sum         12.5%",
        "a long one  5%     twice",
    ]

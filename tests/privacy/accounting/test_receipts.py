"""What a receipt and a plan say about a promise that is weak."""

import math

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from skdp import DPPCA, DPRidge
from skdp.exceptions import PrivacyWarning
from skdp.privacy.accounting.receipts import cautions

X = np.random.default_rng(0).standard_normal((400, 3))


def test_a_usual_promise_needs_no_caution():
    assert cautions(10.0, 1e-6, "row", 10_000) == ()
    assert cautions(math.inf, 0.0, "row") == ()  # that is said as what it is


def test_plans_and_cards_say_that_epsilon_is_large():
    pca = DPPCA(1, epsilon=100.0, clip_norm=1.0)
    assert "e^100 times as likely with one row" in str(pca.plan(400, 3))
    assert "e^100 times as likely" in str(pca.fit(X).privacy_card())
    assert "Weak" not in str(DPPCA(1).plan(400, 3))


def test_plans_say_that_delta_is_large():
    assert "delta=0.01 is no less than 1/400" in str(DPPCA(1, delta=0.01).plan(400, 3))
    assert not DPPCA(1, delta=0.001).plan(400, 3).cautions


def test_fits_warn_where_the_number_of_rows_is_public():
    with pytest.warns(PrivacyWarning, match="drawn at random would keep this promise"):
        DPPCA(1, delta=0.01, clip_norm=4.0, adjacency="replace").fit(X)
    with pytest.warns(PrivacyWarning, match="no less than 1/400"):
        DPRidge(delta=0.01, clip_norm=4.0, adjacency="replace", target_bounds=(-1, 1)).fit(
            X, X[:, 0]
        )
    DPPCA(1, delta=0.01, clip_norm=4.0).fit(X)  # how many rows there are is private


def test_an_absurd_epsilon_warns():
    with pytest.warns(PrivacyWarning, match="promises next to nothing"):
        DPPCA(1, epsilon=1e6, clip_norm=4.0).fit(X)


def test_a_receipt_in_print_says_what_it_is_of():
    """One of ten fits of a search has the receipt of one fit."""
    X = np.random.default_rng(0).standard_normal((3000, 3))
    search = GridSearchCV(
        DPRidge(clip_norm=1.0, target_bounds=(-1, 1)), {"alpha": [1.0, 9.0]}, cv=2
    )
    spent = search.fit(X, X[:, 0]).best_estimator_.privacy_spent_
    assert str(spent) == "(ε=1, δ=1e-06) row, by this fit alone"
    assert spent.sentence().endswith(", by this fit alone.")
    assert len(repr(spent)) <= 30

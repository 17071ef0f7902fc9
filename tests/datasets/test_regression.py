"""Synthetic records and users: shapes, laws."""

import numpy as np
import pytest

from skdp.datasets import make_trace_regression, make_user_tasks


@pytest.mark.parametrize("design", ["gaussian", "factored", "entries"])
def test_trace_regression(design):
    X, y, M = make_trace_regression(
        20_000, (6, 4), 2, noise_sd=0.1, design=design, coef=True, random_state=0
    )
    assert np.linalg.matrix_rank(M) == 2
    assert y.var() == pytest.approx(2.01, rel=0.2)
    if design == "factored":
        products = np.einsum("ij,ik->ijk", *X)
    else:
        products = (X if design == "gaussian" else X.toarray()).reshape(-1, 6, 4)
    residual = y - np.einsum("ijk,jk->i", products, M)
    assert residual.std() == pytest.approx(0.1, rel=0.05)
    assert np.einsum("ijk,i->jk", products, y) / len(y) == pytest.approx(M, abs=0.15)


def test_unknown_design():
    with pytest.raises(ValueError, match="'design' parameter"):
        make_trace_regression(10, design="sparse")


def test_user_tasks():
    X, y, groups, coefs = make_user_tasks(
        500, 8, 2, rows_per_user=(3, 5), noise_sd=0.1, coef=True, random_state=0
    )
    counts = np.bincount(groups)
    assert len(counts) == 500 and set(counts) == {3, 4, 5}
    assert np.linalg.matrix_rank(coefs) == 2
    assert (y - np.sum(X * coefs[groups], axis=1)).std() == pytest.approx(0.1, rel=0.05)
    labels = make_user_tasks(20, 8, classes=True, random_state=0)[1]
    assert set(labels) == {0, 1}

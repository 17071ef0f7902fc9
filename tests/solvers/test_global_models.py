"""The model of all users: what noise adds to it outside the subspace of their heads."""

import numpy as np
import pytest

from skdp import DPPersonalizedRegressor
from skdp.datasets import make_user_tasks
from skdp.solvers.personalization import Doubt, GlobalModel, View
from skdp.solvers.shared_subspace import settled
from skdp.testing import seeded_entropy


def a_view(coef, deviation, whitener=None, center=None):
    d = len(coef)
    center = np.zeros(d) if center is None else center
    doubt = None if deviation is None else Doubt(deviation**2 * coef.shape[1] * np.eye(d), center)
    return View(whitener, True, "squared", GlobalModel(coef, np.ones(coef.shape[1]), doubt=doubt))


def whiteners(d):
    rng = np.random.default_rng(3)
    return {
        "none": None,
        "diagonal": rng.uniform(0.5, 2.0, d),
        "full": np.eye(d) + 0.1 * rng.standard_normal((d, d)),
    }


def raw(whitener, inner):
    """Return coefficients of raw rows."""
    if whitener is None:
        return inner
    return inner * whitener[:, None] if whitener.ndim == 1 else whitener @ inner


@pytest.mark.parametrize("kind", ["none", "diagonal", "full"])
@pytest.mark.parametrize("p", [1, 3])
def test_the_part_outside_goes_where_it_is_noise_and_stays_where_it_is_not(kind, p):
    rng, d = np.random.default_rng(0), 30
    U = np.linalg.qr(rng.standard_normal((d, 4)))[0]
    W = whiteners(d)[kind]
    inside = U @ rng.standard_normal((4, p))
    outside = rng.standard_normal((d, p))
    outside -= U @ (U.T @ outside)
    shrink = []
    for size in (0.1, 1.0, 100.0):
        coef = raw(W, inside + size * outside)
        noise = raw(W, np.eye(d))  # independent in whitened features
        view = a_view(coef, None, W)
        doubt = Doubt(p * noise @ noise.T, np.zeros(d))
        view = View(W, True, "squared", view.base._replace(doubt=doubt))
        found = settled(view, U).base.coef
        part = found - raw(W, inside)
        shrink.append(float(np.sum(part * coef) / np.sum(raw(W, size * outside) * coef)))
        factor = max(0.0, 1 - p * 26 * (26 * p - 2) / (26 * p) / np.sum((size * outside) ** 2))
        np.testing.assert_allclose(part, factor * raw(W, size * outside), atol=1e-9 * size)
    assert shrink[0] == pytest.approx(0.0, abs=1e-9) and shrink[2] > 0.99


def test_predictions_where_rows_lie_stay():
    rng = np.random.default_rng(1)
    center, coef = rng.standard_normal(12) * 5, rng.standard_normal((12, 1))
    view = a_view(coef, 0.9, center=center)
    after = settled(view, np.linalg.qr(rng.standard_normal((12, 2)))[0]).base
    assert np.abs(after.coef - coef).max() > 0.1
    before = center @ coef + view.base.intercept
    np.testing.assert_allclose(center @ after.coef + after.intercept, before)


def test_nothing_to_settle():
    """No base, no known noise, no noise, no room outside: the view stays as it is."""
    U = np.eye(6)[:, :2]
    coef = np.ones((6, 1))
    assert settled(View(None, True, "squared"), U).base is None
    view = a_view(coef, None)
    assert settled(view, U) is view
    np.testing.assert_array_equal(settled(a_view(coef, 0.0), U).base.coef, coef)
    np.testing.assert_array_equal(settled(a_view(coef, 9.0), np.eye(6)[:, :5]).base.coef, coef)


@pytest.mark.deep
def test_noise_of_the_model_of_all_is_not_left_to_the_heads():
    """Heads that have much in common, whose mean lies in their subspace: .043 and more before."""
    X, y, groups, coefs = make_user_tasks(600, 20, 2, rows_per_user=10, coef=True, random_state=0)
    coefs = coefs + 2 * np.linalg.svd(coefs, full_matrices=False)[2][0]
    rng = np.random.default_rng(1)
    y = np.einsum("nd,nd->n", X, coefs[groups]) + 0.5 * rng.standard_normal(len(y))
    model = DPPersonalizedRegressor(2, epsilon=4.0)
    with seeded_entropy(0):
        risks = [
            np.sum((model.fit(X, y, groups=groups)._private["heads"][:, :-1] - coefs) ** 2)
            for _ in range(5)
        ]
    assert np.median(risks) / np.sum(coefs**2) < 0.03

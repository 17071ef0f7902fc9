"""User-defined losses: conditions on them, and fits that minimise them."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import minimize

from skdp import DPPersonalizedRegressor
from skdp.regression import QuantileLoss
from skdp.regression._personalized import check_row_loss
from skdp.solvers.local_fits import RidgePath, convex_loss
from tools.outcomes import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@dataclass
class LogCosh:
    """Between a square and an absolute value; its second derivative is at most 1/s."""

    s: float = 0.3

    @property
    def curvature(self):
        return 1 / self.s

    def value(self, residual):
        a = np.abs(residual) / self.s
        return self.s * (a + np.log1p(np.exp(-2 * a)) - np.log(2))

    def derivative(self, residual):
        return np.tanh(residual / self.s)


def users(noise, seed=0, n_users=600, m=12, d=6):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    theta = rng.standard_normal((n_users, 2)) @ U.T
    X = rng.standard_normal((2, n_users, m, d))
    truth = np.einsum("tumd,ud->tum", X, theta)
    y = truth + noise(rng, truth.shape)
    groups = np.repeat(np.arange(n_users), m)
    rows = [(X[t].reshape(-1, d), y[t].ravel(), truth[t].ravel()) for t in range(2)]
    return rows, groups


def heavy(rng, shape):
    return 0.25 * rng.standard_t(1.5, shape)


def fitted(loss, rows, groups, seed=0):
    model = DPPersonalizedRegressor(2, epsilon=8.0, loss=loss, random_state=seed)
    return model.fit(*rows[0][:2], groups=groups)


@pytest.mark.deep
@pytest.mark.parametrize("loss", ["absolute", "huber", LogCosh()])
def test_robust_losses_survive_heavy_tails(loss):
    """About .7 of the errors of squares when this was written."""
    ratios = []
    for seed in range(3):
        rows, groups = users(heavy, seed)
        errors = [
            np.median(np.abs(fitted(each, rows, groups).predict(rows[1][0], groups) - rows[1][2]))
            for each in (loss, "squared")
        ]
        ratios.append(errors[0] / errors[1])
    assert np.median(ratios) < 0.9


@pytest.mark.deep
@pytest.mark.parametrize("level", [0.2, 0.5, 0.8])
def test_quantiles_are_where_they_should_be(level):
    """Shrunk to the middle: users have twelve rows each."""
    rows, groups = users(lambda rng, shape: rng.normal(0, 0.5, shape))
    model = fitted(QuantileLoss(level), rows, groups)
    X, y, _ = rows[1]
    share = np.mean(y <= model.predict(X, groups))
    assert abs(share - level) < 0.1
    assert abs(share - 0.5) > 0.7 * abs(level - 0.5)


@pytest.mark.parametrize("loss", [QuantileLoss(0.5), QuantileLoss(0.8), LogCosh(1.0)])
def test_a_local_fit_minimises_the_loss(loss):
    rng = np.random.default_rng(1)
    F, Y = rng.standard_normal((1, 40, 2)), rng.standard_normal((1, 40, 1)) + 0.7
    convex, path = convex_loss(loss), RidgePath.of(F)
    fit = path.fit(Y, np.zeros_like(Y), convex, np.array([1e-6]), np.inf)

    def objective(b):
        return float(loss.value(Y[0, :, 0] - F[0] @ b[:2] - b[2]).mean())

    best = min(minimize(objective, x, method="Nelder-Mead").fun for x in np.zeros((1, 3)))
    theta = path.coefficients(fit)[0, :, 0]
    found = objective(np.array([*theta, fit.intercept[0, 0]]))
    assert found - best < 0.05 * (objective(np.zeros(3)) - best)


def altered(**changes):
    return type("Altered", (LogCosh,), changes)()


BAD = {
    "'loss' parameter": "poisson",
    "not have both methods": object(),
    "neither": altered(curvature=None),
    "not convex": altered(derivative=lambda self, r: np.sin(r)),
    "not the derivative of its value": altered(derivative=lambda self, r: 2 * np.tanh(r)),
    "negative somewhere": altered(value=lambda self, r: LogCosh.value(self, r) - 1),
    "exceeds its bounds": altered(curvature=None, bounds=(-0.9, 1.0)),
    "grows faster": altered(curvature=1.0),
    "positive number": altered(curvature=-1.0),
    "two finite numbers": altered(bounds=(1.0, -1.0)),
    "one finite number": altered(value=lambda self, r: np.sum(r)),
    "of other people": altered(value=lambda self, r: LogCosh.value(self, r) + np.ptp(r)),
}


@pytest.mark.parametrize("why", BAD)
def test_a_loss_that_is_not_what_it_says_is_refused_before_it_is_paid(why):
    rows, groups = users(heavy, n_users=20)
    assert_refused(DPPersonalizedRegressor(1, loss=BAD[why]), why, *rows[0][:2], groups=groups)


def test_good_losses_pass():
    for loss in (LogCosh(), LogCosh(3.0), QuantileLoss(0.01), altered(bounds=(-1.0, 1.0))):
        check_row_loss("Model", loss)

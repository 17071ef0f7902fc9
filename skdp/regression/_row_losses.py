"""Convex losses of residuals that users minimise, and what has to hold of them."""

from dataclasses import dataclass
from numbers import Real

import numpy as np

# Public residuals that a loss is tried on: two signs, sixteen decades, and ordinary sizes.
_POINTS = np.unique(
    np.concatenate([s * 10.0 ** np.arange(-6.0, 7.0) for s in (-1, 1)] + [np.linspace(-5, 5, 41)])
)
_CLOSE = 1e-6
_FARTHEST = 50.0  # logarithms of means
_MOST_COUNTED = 1e12


@dataclass(frozen=True)
class QuantileLoss:
    """Loss whose minimiser is a quantile: ``level * r`` above 0, ``(level - 1) * r`` below.

    Parameters
    ----------
    level : float, default=0.5
        In (0, 1); 0.5 is (half of) the absolute error.

    Examples
    --------
    >>> from skdp.regression import DPPersonalizedRegressor, QuantileLoss
    >>> model = DPPersonalizedRegressor(1, loss=QuantileLoss(0.9))
    """

    level: float = 0.5
    homogeneous = True  # scales with the residual, so that users may use units of their own

    @property
    def bounds(self):
        """Return the smallest and the largest derivative."""
        return self.level - 1.0, self.level

    def value(self, residual):
        """Return the loss of each residual (target minus prediction)."""
        return np.maximum(self.level * residual, (self.level - 1.0) * residual)

    def derivative(self, residual):
        """Return the derivative of the loss at each residual."""
        return np.where(residual > 0, self.level, self.level - 1.0)


@dataclass(frozen=True)
class PoissonLoss:
    """Loss of counts whose logarithmic means are linear: ``exp(eta) - count * eta``.

    Counts are cut to [0, `largest`], and beyond ``eta = log(largest)`` the loss goes on as a line:
    it is convex, and its derivative stays within (-`largest`, `largest`).

    Parameters
    ----------
    largest : float, default=1000.0
        Public; the largest count, and the largest mean, that is told from larger ones.

    Examples
    --------
    >>> from skdp.regression import DPPersonalizedRegressor, PoissonLoss
    >>> model = DPPersonalizedRegressor(1, loss=PoissonLoss(largest=50))
    """

    largest: float = 1000.0
    link = "log"

    @property
    def bounds(self):
        """Return the smallest and the largest derivative."""
        return -float(self.largest), float(self.largest)

    def mean(self, eta):
        """Return the mean count at each linear predictor, at most `largest`."""
        means = np.exp(np.minimum(eta, np.log(self.largest)))
        return np.minimum(means, self.largest)

    def value(self, count, eta):
        """Return half of the deviance of each count: 0 where it is its own mean."""
        beyond = np.maximum(eta - np.log(self.largest), 0.0)
        logs = np.log(np.maximum(count, 1e-300))
        saturated = count * logs - count
        found = self.mean(eta) + self.largest * beyond - count * eta + saturated
        return np.maximum(found, 0.0)

    def derivative(self, count, eta):
        """Return the derivative in the linear predictor."""
        return self.mean(eta) - count

    def counts(self, y):
        """Return counts that are cut, as the logarithms that releases see: log(y + 1/2)."""
        return np.log(np.clip(y, 0.0, self.largest) + 0.5)

    def beside(self, logs, eta):
        """Return counts in units of the means of a model of all: means of theirs are 1.

        exp(eta) E(c/exp(eta) | x) = E(c | x): what fits them tells how a user differs from it.
        """
        eta = np.clip(eta, -_FARTHEST, _FARTHEST)
        found = np.exp(logs - eta) - 0.5 * np.exp(-eta)
        return np.clip(found, 0.0, self.largest)


def check_poisson_loss(name, loss):
    """Refuse bounds that are none."""
    if not (isinstance(loss.largest, Real) and 1 <= loss.largest <= _MOST_COUNTED):
        raise ValueError(
            f"the 'loss' parameter of {name}: 'largest' of PoissonLoss must be a number between 1 "
            f"and {_MOST_COUNTED:g}. Got {loss.largest!r}."
        )


def check_row_loss(name, loss):
    """Refuse a loss that is not what it says; it is tried on public residuals."""

    def fail(why):
        raise ValueError(
            f"the 'loss' parameter of {name} must be 'squared', 'huber', 'absolute', PoissonLoss() "
            "for counts, or an object with value(residual), derivative(residual) and 'bounds' of "
            f"its derivative (or a bound 'curvature' of its second one): {why}. Got {loss!r}."
        )

    if not all(callable(getattr(loss, each, None)) for each in ("value", "derivative")):
        fail("it has not both methods")
    try:
        with np.errstate(all="ignore"):
            value, slope = (_tried(each) for each in (loss.value, loss.derivative))
            curvature, bounds = _declared(loss)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        fail(error)
    steps = np.diff(_POINTS)
    chords = np.diff(value) / steps
    tolerance = _CLOSE * np.maximum(np.abs(slope[1:]), np.abs(slope[:-1])) + 1e-12
    rough = 1e-9 * np.maximum(np.abs(value[1:]), np.abs(value[:-1])) / steps
    if value.min() < 0:
        fail("it is negative somewhere")
    if np.any(np.diff(slope) < -tolerance):
        fail("its derivative falls, so that it is not convex")
    if np.any(chords < slope[:-1] - tolerance - rough) or np.any(
        chords > slope[1:] + tolerance + rough
    ):
        fail("its derivative is not that of its value")
    if bounds is not None and not (bounds[0] <= slope.min() and slope.max() <= bounds[1]):
        fail(f"its derivative leaves its bounds {bounds}")
    if curvature is not None and np.any(np.diff(slope) > curvature * steps * (1 + _CLOSE) + 1e-9):
        fail(f"its derivative grows faster than curvature={curvature:g}")


def _tried(function):
    """Return a function at the points; each value must come from its own point alone."""
    found = np.asarray(function(_POINTS.reshape(1, -1, 1)), np.float64)
    if found.shape != (1, len(_POINTS), 1) or not np.isfinite(found).all():
        raise ValueError("it must return one finite number for each residual of an array")
    alone = [np.asarray(function(np.full((1, 1, 1), r)))[0, 0, 0] for r in _POINTS]
    turned = np.asarray(function(_POINTS[::-1].reshape(-1, 1, 1)), np.float64).ravel()[::-1]
    if not all(np.allclose(found.ravel(), other, rtol=1e-12, atol=0) for other in (alone, turned)):
        raise ValueError("what it says of a residual depends on the others, of other people")
    return found.ravel()


def _declared(loss):
    """Return the declared curvature and bounds of the derivative; one is needed."""
    curvature, bounds = getattr(loss, "curvature", None), getattr(loss, "bounds", None)
    if curvature is None and bounds is None:
        raise ValueError("it declares neither 'bounds' nor 'curvature'")
    if curvature is not None and not 0 < float(curvature) < np.inf:
        raise ValueError("its 'curvature' must be a positive number")
    if bounds is not None:
        low, high = (float(end) for end in bounds)
        if not -np.inf < low < high < np.inf:
            raise ValueError("its 'bounds' must be two finite numbers, low < high")
        bounds = low, high
    return curvature, bounds

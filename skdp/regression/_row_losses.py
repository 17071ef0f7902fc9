"""Convex losses of residuals that users minimise, and what has to hold of them."""

from dataclasses import dataclass

import numpy as np

# Public residuals that a loss is tried on: two signs, sixteen decades, and ordinary sizes.
_POINTS = np.unique(
    np.concatenate([s * 10.0 ** np.arange(-6.0, 7.0) for s in (-1, 1)] + [np.linspace(-5, 5, 41)])
)
_CLOSE = 1e-6


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


def check_row_loss(name, loss):
    """Refuse a loss that is not what it says; it is tried on public residuals."""

    def fail(why):
        raise ValueError(
            f"the 'loss' parameter of {name} must be 'squared', 'huber', 'absolute', or an object "
            "with value(residual), derivative(residual) and 'bounds' of its derivative (or a "
            f"bound 'curvature' of its second derivative): {why}. Got {loss!r}."
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

"""How many samples a budget needs, before there are any."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import clone

from skdp.plotting._style import COLORS, GREY, axes_of, wrapped


class PlanDisplay:
    """Expected error against the number of samples, for several budgets; no data are touched.

    Parameters
    ----------
    n_samples : array-like of shape (n_sizes,)
        Numbers of samples, in ascending order.
    errors : dict of float to array-like of shape (n_sizes,)
        Epsilon -> expected errors.
    target : float or None, default=None
        Error to be reached.
    meaning : str, default="expected error"
        What the error is.
    estimator_name : str or None, default=None
        Name for the title.
    assumptions : tuple of str, default=()
        What was assumed of the data; printed below the picture.

    Attributes
    ----------
    needed_ : dict of float to float
        Epsilon -> samples at which the target is reached (inf if not within the range).
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    lines_ : dict of float to artist
        Epsilon -> its curve.
    target_ : artist or None
        The line of the target.

    Examples
    --------
    >>> from skdp import DPPCA
    >>> from skdp.plotting import PlanDisplay
    >>> display = PlanDisplay.from_estimator(
    ...     DPPCA(3, clip_norm=1.0), n_features=50, epsilons=[0.5, 1.0], target=0.1
    ... )
    >>> bool(300 < display.needed_[1.0] < display.needed_[0.5] < 3000)
    True
    """

    def __init__(
        self, n_samples, errors, *, target=None, meaning="expected error", estimator_name=None,
        assumptions=(),
    ):  # fmt: skip
        self.n_samples = np.asarray(n_samples, dtype=np.float64)
        self.errors = {epsilon: np.asarray(row, np.float64) for epsilon, row in errors.items()}
        self.target = target
        self.meaning = meaning
        self.estimator_name = estimator_name
        self.assumptions = tuple(assumptions)
        self.needed_ = {
            epsilon: math.inf if target is None else first_below(self.n_samples, row, target)
            for epsilon, row in self.errors.items()
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw one curve for each budget, and where it reaches the target.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : PlanDisplay
            The display.
        """
        self.ax_, self.figure_ = ax, _ = axes_of(ax, (6.8, 4.6))
        self.lines_ = {}
        for number, (epsilon, errors) in enumerate(self.errors.items()):
            color, needed = COLORS[number % len(COLORS)], self.needed_[epsilon]
            label = f"epsilon {epsilon:g}"
            if math.isfinite(needed):
                label += f": {needed:,.0f} samples"
                ax.plot(needed, self.target, "osD^v"[number % 5], color=color, markersize=7)
            style = ("-", "--", "-.", ":")[number % 4]
            (self.lines_[epsilon],) = ax.plot(
                self.n_samples, errors, style, color=color, linewidth=2, label=label
            )
        self.target_ = None
        if self.target is not None:
            self.target_ = ax.axhline(self.target, color=GREY, linewidth=1, label="target")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("samples (number, log scale)")
        ax.set_ylabel("expected error\n" + wrapped(f"({self.meaning})", 50), fontsize="small")
        rows = np.concatenate(list(self.errors.values()))
        least = rows[rows > 0].min(initial=1.0)
        ax.set_ylim(max(least, (self.target or 0.1) / 100), 1.5)
        name = f"{self.estimator_name}: " if self.estimator_name else ""
        ax.set_title(f"{name}how many samples?")
        if self.assumptions:
            text = wrapped("Assumed: " + "; ".join(self.assumptions), 95)
            ax.text(
                0.5, -0.18, text, transform=ax.transAxes, ha="center", va="top", fontsize="x-small",
                color=GREY,
            )  # fmt: skip
        ax.legend(fontsize="small")
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        n_features: Any = None,
        *,
        n_samples: Any = None,
        epsilons: Any = (0.3, 1.0, 3.0),
        target: float = 0.1,
        ax: Any = None,
        **plan_params: Any,
    ) -> Any:
        """Draw the plans of an estimator.

        Parameters
        ----------
        estimator : estimator
            Not fitted, with a method `plan`; its `epsilon` is replaced.
        n_features : int, tuple or None, default=None
            Number of features, as `plan` takes it.
        n_samples : sequence of int or None, default=None
            Sizes; None is 100 to ten million.
        epsilons : sequence of float
            Budgets.
        target : float, default=0.1
            Error to be reached.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **plan_params : dict
            Passed on to ``estimator.plan``, as `signal`.

        Returns
        -------
        display : PlanDisplay
            The display.
        """
        if n_samples is None:
            n_samples = np.geomspace(1e2, 1e7, 101).round().astype(int)
        errors, plan = {}, None
        for epsilon in epsilons:
            model = clone(estimator).set_params(epsilon=epsilon)
            errors[float(epsilon)], plan = errors_of(model, n_samples, n_features, plan_params)
        if plan is None or all(np.isnan(row).all() for row in errors.values()):
            raise ValueError(
                f"{type(estimator).__name__}.plan has no expected error for these parameters: pass "
                "'signal', or read the noise scales of the plan itself."
            )
        display = cls(
            n_samples, errors, target=target, meaning=plan.meaning,
            estimator_name=type(estimator).__name__, assumptions=plan.assumptions,
        )  # fmt: skip
        return display.plot(ax)


def errors_of(model, n_samples, n_features, plan_params):
    """Return the expected errors, and one plan: that of the smallest size if it tells them all."""
    plan = model.plan(int(n_samples[0]), n_features, **plan_params)
    if plan.expected.scales:
        return [plan.error_at(n) for n in n_samples], plan
    plans = [model.plan(int(n), n_features, **plan_params) for n in n_samples]
    return [each.error for each in plans], plans[-1]


def first_below(n_samples, errors, target):
    """Return the number of samples at which a falling curve crosses the target."""
    below = np.flatnonzero(errors <= target)
    if not len(below):
        return math.inf
    i = below[0]
    if i == 0 or not errors[i] > 0:
        return float(n_samples[i])
    x, y = np.log(n_samples[i - 1 : i + 1]), np.log(errors[i - 1 : i + 1])
    return float(np.exp(np.interp(-math.log(target), -y, x)))

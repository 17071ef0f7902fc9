"""Displays of budgets: what releases cost, utility against epsilon."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skdp.exceptions import PrivacyWarning
from skdp.plotting._released import COLORS, GREY, RED, axes_of, log_ticks, wrapped

# The privacy card as a picture: what the budget was spent on.


_SQUARED = (
    "gaussian",
    "sketch",
)  # a sketch has a random mu, whose mean square counts; other losses add up as they are
_KIND = {
    "gaussian": "Gaussian\n(share of mu²)",
    "sketch": "random sketches\n(share of mean mu²)",
    "pure": "pure\n(share of epsilon)",
    "range": "choices\n(share of range)",
}
_HATCHES = ("", "//", "..", "xx")


class BudgetDisplay:
    """Shares of the budget by release, and the guarantee in one sentence.

    Parameters
    ----------
    shares : dict of dict
        Kind of loss -> name of the release -> its share of that kind; each kind sums to 1.
    sentence : str
        The guarantee.
    seeded : bool, default=False
        Whether the noise can be regenerated from a seed.
    estimator_name : str or None, default=None
        Name for the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    bars_ : dict of str to list of artists
        One bar for each release of a kind.
    flag_ : matplotlib Text or None
        The word SEEDED, if the fit was seeded.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.plotting import BudgetDisplay
    >>> X = np.random.default_rng(0).standard_normal((2000, 6)) * np.geomspace(1, 0.1, 6)
    >>> display = BudgetDisplay.from_estimator(DPPCA(2, clip_norm=3.0).fit(X))
    >>> list(display.shares)
    ['gaussian']
    """

    def __init__(self, shares, sentence, *, seeded=False, estimator_name=None):
        self.shares = shares
        self.sentence = sentence
        self.seeded = seeded
        self.estimator_name = estimator_name

    def plot(self, ax: Any = None) -> Any:
        """Draw one stacked bar for each kind of loss.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : BudgetDisplay
            The display.
        """
        rows = max(1, len(self.shares))
        lines = sum(map(len, self.shares.values()))
        height = max(1.7 + 0.7 * rows, 1.0 + 0.21 * lines)
        self.ax_, self.figure_ = ax, _ = axes_of(ax, (8.0, height))
        self.bars_, number = {}, 0
        for row, (kind, parts) in enumerate(self.shares.items()):
            left, self.bars_[kind] = 0.0, []
            for name, share in parts.items():
                (bar,) = ax.barh(
                    row, share, left=left, height=0.6, color=COLORS[number % 7],
                    hatch=_HATCHES[number // 7 % 4], edgecolor="white",
                    label=f"{name} {share:.1%}",
                )  # fmt: skip
                self.bars_[kind].append(bar)
                left += share
                number += 1
        ax.set_yticks(range(len(self.shares)), [_KIND.get(kind, kind) for kind in self.shares])
        ax.set_ylim(-0.5, rows - 0.5)
        ax.set_xlim(0, 1)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
        ax.set_xlabel("share of the budget (%)")
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        name = f"{self.estimator_name}: " if self.estimator_name else ""
        ax.set_title(wrapped(name + self.sentence, 72), fontsize="medium", loc="left")
        if number:
            ax.legend(
                loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False,
                handlelength=1.2,
            )  # fmt: skip
        else:
            text = "nothing was spent: no noise, no privacy"
            ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", color=GREY)
        self.flag_ = None
        if self.seeded:
            self.flag_ = ax.text(
                1.0, 1.02, "SEEDED: not private", transform=ax.transAxes, ha="right", va="bottom",
                color="white", fontweight="bold", fontsize="small",
                bbox={"facecolor": RED, "edgecolor": "none", "boxstyle": "round,pad=0.3"},
            )  # fmt: skip
            ax.set_title(ax.get_title(loc="left"), fontsize="medium", loc="left", pad=24)
        return self

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Any:
        """Draw the receipt of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `privacy_spent_` and `releases_`.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : BudgetDisplay
            The display.
        """
        check_is_fitted(estimator, "releases_")
        spent = estimator.privacy_spent_
        name = type(estimator).__name__
        shares = shares_of(estimator.releases_)
        return cls(shares, spent.statement(), seeded=spent.seeded, estimator_name=name).plot(ax)


def shares_of(ledger):
    """Return shares by kind of loss and by name, in the order of the ledger."""
    weights = {}
    for line in ledger:
        value = float(line.loss.value)
        weight = value**2 if line.loss.kind in _SQUARED else value
        if math.isfinite(weight) and weight > 0:
            parts = weights.setdefault(line.loss.kind, {})
            parts[line.name] = parts.get(line.name, 0.0) + weight
    return {
        kind: {name: weight / sum(parts.values()) for name, weight in parts.items()}
        for kind, parts in weights.items()
    }


# Utility against epsilon, on data that are public.


_DATA = ("public", "synthetic")


class UtilityCurveDisplay:
    """A metric against epsilon: median and band over fits, with lines for no privacy and chance.

    The metric looks at the data, and so does the choice that somebody makes by it: **make this
    picture with public or synthetic data only**. On private data it would be a leak of its own,
    however private the fits are.

    Parameters
    ----------
    epsilons : array-like of shape (n_epsilons,)
        Budgets, in ascending order.
    values : array-like of shape (n_epsilons, n_repeats)
        The metric of each fit.
    data : {"public", "synthetic"}
        What the data are; printed into the picture.
    not_private : float or None, default=None
        The metric without privacy.
    chance : float or None, default=None
        The metric of a model that knows nothing.
    metric_name : str, default="score"
        Label of the axis.
    label : str or None, default=None
        Name of the curve.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    line_ : artist
        The medians.
    band_ : artist
        From the 5th to the 95th percentile.
    not_private_, chance_ : artists or None
        The horizontal lines.

    Examples
    --------
    >>> from skdp.plotting import UtilityCurveDisplay
    >>> display = UtilityCurveDisplay.from_values(
    ...     [0.5, 1.0], [[0.4, 0.5], [0.6, 0.7]], data="synthetic", not_private=0.8
    ... )
    >>> [round(float(m), 2) for m in display.medians]
    [0.45, 0.65]
    """

    def __init__(
        self, epsilons, values, *, data, not_private=None, chance=None, metric_name="score",
        label=None,
    ):  # fmt: skip
        if data not in _DATA:
            raise ValueError(
                "The 'data' parameter of UtilityCurveDisplay must be 'public' or 'synthetic': a "
                f"utility curve of private data is not private. Got {data!r} instead."
            )
        self.epsilons = np.asarray(epsilons, dtype=np.float64)
        self.values = np.asarray(values, dtype=np.float64)
        if self.values.ndim != 2 or len(self.values) != len(self.epsilons):
            raise ValueError(
                f"'values' must be of shape (n_epsilons, n_repeats) = ({len(self.epsilons)}, n). "
                f"Got an array of shape {self.values.shape} instead."
            )
        self.data = data
        self.not_private = not_private
        self.chance = chance
        self.metric_name = metric_name
        self.label = label

    @property
    def medians(self) -> Any:
        """Medians of the fits at each epsilon."""
        return np.median(self.values, axis=1)

    def plot(self, ax: Any = None, *, color: Any = None) -> Any:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure. Several curves may share axes.
        color : color, default=None
            Of the curve; None takes the next one.

        Returns
        -------
        display : UtilityCurveDisplay
            The display.
        """
        self.ax_, self.figure_ = ax, _ = axes_of(ax)
        used = sum(line.get_gid() == "utility" for line in ax.lines)
        color = color or COLORS[used % len(COLORS)]
        label = self.label or "private, median"
        (self.line_,) = ax.plot(
            self.epsilons, self.medians, marker="os^Dv"[used % 5], color=color, label=label,
            gid="utility",
        )  # fmt: skip
        low, high = np.percentile(self.values, [5, 95], axis=1)
        self.band_ = ax.fill_between(
            self.epsilons, low, high, color=color, alpha=0.2, linewidth=0,
            label=None if used else "5% to 95% of the fits",
        )  # fmt: skip
        self.not_private_ = self._level(self.not_private, "--", "not private")
        self.chance_ = self._level(self.chance, ":", "chance")
        ax.set_xscale("log")
        log_ticks(ax.xaxis, self.epsilons)
        ax.set_xlabel("epsilon (privacy loss, log scale)")
        ax.set_ylabel(self.metric_name)
        repeats = self.values.shape[1]
        ax.set_title(f"utility on {self.data} data, {repeats} fits at each epsilon")
        ax.legend(fontsize="small")
        return self

    def _level(self, value, style, label):
        if value is None:
            return None
        return self.ax_.axhline(value, linestyle=style, color=GREY, label=label)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        data: Any,
        epsilons: Any = (0.1, 0.3, 1.0, 3.0, 10.0),
        n_repeats: int = 10,
        metric: Any = None,
        metric_name: Any = None,
        chance: Any = None,
        fit_params: Any = None,
        ax: Any = None,
    ) -> Any:
        """Fit clones of an estimator at several budgets and draw their metric.

        Parameters
        ----------
        estimator : estimator
            Not fitted; its `epsilon` is replaced.
        X, y : arrays
            Public or synthetic data, never private ones.
        data : {"public", "synthetic"}
            What they are; printed into the picture.
        epsilons : sequence of float
            Budgets.
        n_repeats : int, default=10
            Fits at each epsilon, with fresh noise.
        metric : callable or None, default=None
            ``metric(fitted, X, y)``; None is the captured share of the squared length where there
            are components to project on and no y, else ``fitted.score(X, y)``.
        metric_name : str or None, default=None
            Label of the axis; None takes the name of the metric.
        chance : float or None, default=None
            The metric of a model that knows nothing; None is known for the captured share.
        fit_params : dict or None, default=None
            Passed on to fit and, if they are `groups`, to the default metric.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : UtilityCurveDisplay
            The display.
        """
        if data not in _DATA:
            cls([], np.zeros((0, 1)), data=data)
        fit_params = fit_params or {}
        projects = metric is None and y is None
        if metric is None:
            metric = captured_share if projects else score_with(fit_params)
        target = () if y is None else (y,)

        def value(**params):
            model = clone(estimator).set_params(**params).fit(X, *target, **fit_params)
            return float(metric(model, X, y))

        epsilons = sorted(float(epsilon) for epsilon in epsilons)
        values = [[value(epsilon=epsilon) for _ in range(n_repeats)] for epsilon in epsilons]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # it is what the line says
            exact = {"clip_norm": math.inf} if "clip_norm" in estimator.get_params() else {}
            best = value(epsilon=math.inf, **exact)
        if projects:
            metric_name = metric_name or "captured share of the squared length"
            if chance is None:
                chance = int(estimator.n_components) / X.shape[1]
        display = cls(
            epsilons, values, data=data, not_private=best, chance=chance,
            metric_name=metric_name or getattr(metric, "__name__", "score").replace("_", " "),
            label=f"{type(estimator).__name__}, median",
        )  # fmt: skip
        return display.plot(ax)

    @classmethod
    def from_values(
        cls,
        epsilons: Any,
        values: Any,
        *,
        data: Any,
        not_private: Any = None,
        chance: Any = None,
        metric_name: str = "score",
        label: Any = None,
        ax: Any = None,
    ) -> Any:
        """Draw a curve from numbers.

        Parameters
        ----------
        epsilons : array-like of shape (n_epsilons,)
            Budgets, in ascending order.
        values : array-like of shape (n_epsilons, n_repeats)
            The metric of each fit.
        data : {"public", "synthetic"}
            What the data are.
        not_private, chance : float or None, default=None
            Horizontal lines.
        metric_name : str, default="score"
            Label of the axis.
        label : str or None, default=None
            Name of the curve.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : UtilityCurveDisplay
            The display.
        """
        display = cls(
            epsilons, values, data=data, not_private=not_private, chance=chance,
            metric_name=metric_name, label=label,
        )  # fmt: skip
        return display.plot(ax)


def captured_share(model, X, _=None):
    """Share of the squares of X that lies in the span of the components."""
    basis = np.linalg.qr(np.asarray(model.components_, np.float64).T)[0]
    squares = X.multiply(X).sum() if hasattr(X, "multiply") else np.sum(np.square(X))
    return float(np.sum(np.square(X @ basis)) / squares)


def score_with(fit_params):
    """Return the score of a model, with its users if it has any."""
    groups = {key: value for key, value in fit_params.items() if key == "groups"}

    def score(model, X, y):
        return model.score(X, y, **groups)

    return score

"""Displays of what was released: spectra, scree plots, scores."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp._limits import CLEAR
from skdp.privacy.streams.continual import stream_schedule
from skdp.solvers.linalg import detection_limit, symmetric_noise_edge
from skdp.solvers.postprocess import mean_noise_bias

# What the displays share: axes, colours, and words.


# Okabe and Ito's colours, which people with colour blindness tell apart; darkest first.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
GREY = "0.35"


def axes_of(ax, figsize=(6.4, 4.2)):
    """Return (axes, figure): those given, or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "skdp.plotting needs matplotlib. Install it with `pip install skdp[plot]`."
        ) from error
    if ax is None:
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    return ax, ax.figure


# The noise level of a released spectrum: the largest value that noise alone would show.


_SYMMETRIC = ("gram", "augmented_gram", "user_direction_gram")
_SKETCHES = ("full_matrix", "right_sketch")
_SUMS = ("row_sum", "item_counts")
_PRODUCTS = ("tangent_product", "gram_product", "right_product", "left_product")
# Releases of order k whose eigenvalues are the values: their noise level over that of symmetric
# noise of the same scale.
_READ_OFF = {"projected_gram": 1.0, "rayleigh_quotient": 1.0, "projected_matrix": math.sqrt(2)}


def released_values(estimator):
    """Return (values, what they are, whether `noise_edge` is in their unit)."""
    values = getattr(estimator, "eigenvalues_", None)
    if values is not None:
        return values, "eigenvalue (released)", True
    values = getattr(estimator, "singular_values_", None)
    if values is None:
        raise ValueError(
            f"{type(estimator).__name__} released no spectrum: it has neither 'eigenvalues_' nor "
            "'singular_values_'. Use SpectrumDisplay(values).plot()."
        )
    known = hasattr(estimator, "left_singular_vectors_")
    of_rows = "gram" in {line.name for line in estimator.releases_}
    if hasattr(estimator, "coef_") or (known and not of_rows):
        return values, "singular value (released)", known
    return values**2, "squared singular value (unit of X, squared)", True


def noise_edge(estimator, n_values):
    """Return the noise level of a spectrum, exceeded by noise in 1 of 100 fits; None if unknown.

    It is computed from the ledger, in the unit of the values that are shown. Values that are
    debiased (those of rows) have a debiased noise level.
    A released symmetric matrix of order d: sigma sqrt(2 d). Products of T releases with n rows:
    sigma sqrt(n / T), as far as they average. The smallest of them says which directions are found.
    Their values may come from a later release of order k, and its noise may be larger: then that
    counts. Of a matrix or its sketches, and of means next to them or alone, values that noise
    explains are 0 already (those as published are not, and their noise level is unknown).
    """
    lines = estimator.releases_
    names = {line.name for line in lines}
    if not names.isdisjoint(_SKETCHES):
        return 0.0 if "full_matrix" in names or hasattr(estimator, "rank_") else None
    edges, noise_bias = [], _noise_bias_of_mean(estimator)
    for name in names:
        scales = [release_noise(estimator, line) for line in lines if line.name == name]
        if name in _SYMMETRIC:
            d = estimator.n_features_in_ + (name == "augmented_gram")
            scale = min(scales) / math.sqrt(len(scales))
            edges.append(_shown(estimator, scale, d, noise_bias))
        elif name in _PRODUCTS and "gram" not in names:
            precision = sum(1 / scale**2 for scale in scales if scale > 0)
            size = estimator.n_features_in_
            if name == "right_product":
                left = getattr(estimator, "embedding_", range(size))
                size = len(getattr(estimator, "left_singular_vectors_", left))
            edge = math.sqrt(size / precision) if precision else 0.0
            edges.append(edge + noise_bias)
    read_off = [
        _shown(estimator, line.noise_scale * factor, n_values, noise_bias)
        for line in lines
        if (factor := _READ_OFF.get(line.name))
    ]
    if not edges + read_off and not names.isdisjoint(_SUMS):
        return 0.0
    return max(min(edges, default=0.0), max(read_off, default=0.0)) or None


def _shown(estimator, scale, order, noise_bias):
    """Return the noise level of symmetric noise, debiased as the estimator debiases its values."""
    edge = symmetric_noise_edge(scale, order)
    clear = detection_limit(edge, order) + noise_bias
    is_pca = hasattr(estimator, "components_") and not hasattr(estimator, "left_singular_vectors_")
    return math.sqrt(clear**2 - edge**2) if is_pca else clear


def _noise_bias_of_mean(estimator):
    """Return what the noise of a separately released mean adds to the Gram matrix about it.

    The last mean counts, with those before it that were pooled with it: sums of the same rows, so
    of the same noise.
    """
    sums = [line.noise_scale for line in estimator.releases_ if line.name == "row_sum"]
    if not sums or not hasattr(estimator, "n_samples_") or not hasattr(estimator, "mean_"):
        return 0.0
    pooled = sums[-1] / math.sqrt(sums.count(sums[-1]))
    bias = mean_noise_bias(pooled, max(1, estimator.n_samples_), estimator.n_features_in_)
    return float(bias.value) + CLEAR * bias.noise_scale


def release_noise(estimator, line):
    """Return the noise of the last release: a stream has more of it than its ledger line shows."""
    steps = getattr(estimator, "n_stream_releases_", None)
    if steps is None or " stream of " not in line.mechanism:
        return line.noise_scale
    mechanism = "sqrt" if "square-root" in line.mechanism else "tree"
    window = getattr(estimator, "window", None)
    schedule = stream_schedule(1, estimator.max_releases, mechanism, window)
    return line.noise_scale * schedule.unit * schedule.noise_factor(steps)


# Released eigenvalues next to the edge of the noise.


class SpectrumDisplay:
    """Released eigenvalues or singular values, and the noise level.

    It draws released values only. Privacy noise alone explains values inside the shaded band.
    Values above it are variance of the rows; many rows without structure have it in every
    direction.

    Parameters
    ----------
    values : array-like of shape (n_values,)
        Released values, in descending order.
    noise_edge : float or None, default=None
        The noise level, including the noise of a released mean; None if it is unknown, 0 if values
        that noise explains are 0 (those of `DPLowRankFactorizer`).
    n_kept : int or None, default=None
        How many of the values the model uses; None is all.
    quantity : str, default="eigenvalue"
        What the values are, with their unit.
    estimator_name : str or None, default=None
        Name for the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    kept_, left_out_ : artists
        Filled and hollow points.
    band_ : artist or None
        The shaded band of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.plotting import SpectrumDisplay
    >>> X = np.random.default_rng(0).standard_normal((500, 6)) * np.geomspace(1, 0.1, 6)
    >>> display = SpectrumDisplay.from_estimator(DPPCA(2, clip_norm=3.0).fit(X))
    >>> len(display.values)
    2
    """

    def __init__(
        self, values, *, noise_edge=None, n_kept=None, quantity="eigenvalue", estimator_name=None
    ):
        self.values = np.asarray(values, dtype=np.float64)
        self.noise_edge = noise_edge
        self.n_kept = len(self.values) if n_kept is None else n_kept
        self.quantity = quantity
        self.estimator_name = estimator_name

    @property
    def n_above_noise(self) -> Any:
        """Number of values above the noise level; None if that level is unknown.

        Rows without any structure give 0 in at least 95 of 100 fits.
        """
        if self.noise_edge is None:
            return None
        return int(np.count_nonzero(np.abs(self.values) > self.noise_edge))

    def plot(self, ax: Any = None) -> Any:
        """Draw the values as stems and the noise as a band.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : SpectrumDisplay
            The display.
        """
        self.ax_, self.figure_ = ax, _ = axes_of(ax)
        numbers = np.arange(1, len(self.values) + 1)
        ax.vlines(numbers, 0, self.values, color="0.75", linewidth=1.5, zorder=1)
        kept = numbers <= self.n_kept
        self.kept_ = ax.scatter(
            numbers[kept], self.values[kept], s=50, color=COLORS[0], label="kept", zorder=3
        )
        self.left_out_ = None
        if not kept.all():
            self.left_out_ = ax.scatter(
                numbers[~kept], self.values[~kept], s=50, facecolors="white", edgecolors=COLORS[0],
                linewidths=1.5, label="left out", zorder=3,
            )  # fmt: skip
        self.band_ = None
        if self.noise_edge:
            low = -self.noise_edge if (self.values < 0).any() else 0.0
            self.band_ = ax.axhspan(
                low, self.noise_edge, color=COLORS[1], alpha=0.25, linewidth=0, zorder=0,
                label=f"noise alone: up to {self.noise_edge:.3g}",
            )  # fmt: skip
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set_xticks(numbers[:: max(1, len(numbers) // 15)])
        ax.set_xlim(0.4, len(self.values) + 0.6)
        ax.set_xlabel("component (number)")
        ax.set_ylabel(self.quantity)
        name = f"{self.estimator_name}: " if self.estimator_name else ""
        above = self.n_above_noise
        count = "" if above is None else f", {above} of {len(self.values)} above the noise"
        ax.set_title(f"{name}released spectrum{count}")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "frameon": False}
        ax.legend(fontsize="small", ncols=3, **below)
        if np.all(self.values >= 0) and np.any(self.values > 0):
            ax.set_ylim(0, 1.05 * max(self.values.max(), self.noise_edge or 0.0))
        return self

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Any:
        """Draw the spectrum that a fitted estimator released.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `singular_values_` or `eigenvalues_`.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : SpectrumDisplay
            The display.
        """
        check_is_fitted(estimator, "releases_")
        values, quantity, squared = released_values(estimator)
        edge = noise_edge(estimator, len(values)) if squared else None
        words = {"quantity": quantity, "estimator_name": type(estimator).__name__}
        n_kept = getattr(estimator, "n_components_", None)
        return cls(values, noise_edge=edge, n_kept=n_kept, **words).plot(ax)


# Where private rows lie in a plane, as it was released.


_HALF, _MOST = 0.5, 0.9  # shares of the rows of a class that its contours hold
_LINES = ("-", "--", ":", "-.")


def mass_level(density, share):
    """Return the level above which the densest cells hold a share of all that is shown."""
    ordered = np.sort(density.ravel())[::-1]
    total = np.cumsum(ordered)
    return float(ordered[min(np.searchsorted(total, share * total[-1]), ordered.size - 1)])


class ScoreDisplay:
    """The score plot of a private fit: a shaded density, a contour for each class, loadings.

    It draws released values only. Bins below the noise level are empty, and classes below the noise
    are omitted.

    Parameters
    ----------
    estimator : DPScoreDensity
        Fitted.
    n_loadings : int, default=6
        How many features get an arrow: those with the longest loadings.
    feature_names : list of str or None, default=None
        Names of the features; None takes those that the estimator saw, or numbers.
    component_names : pair of str, default=("component 1", "component 2")
        Labels of the axes.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    density_ : artist or None
        The shaded cells.
    contours_ : list of artists
        Of each class that is shown: half of its rows inside the inner line, nine tenths inside the
        outer one.
    arrows_ : list of artists
        The loadings.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPScoreDensity
    >>> from skdp.plotting import ScoreDisplay
    >>> X = np.random.default_rng(0).standard_normal((5000, 3)) * np.geomspace(1, 0.1, 3)
    >>> display = ScoreDisplay.from_estimator(DPScoreDensity().fit(X))
    >>> display.estimator.kind_, len(display.arrows_)
    ('density', 2)
    """

    def __init__(
        self, estimator, *, n_loadings=6, feature_names=None,
        component_names=("component 1", "component 2"),
    ):  # fmt: skip
        self.estimator = estimator
        self.n_loadings = n_loadings
        self.feature_names = feature_names
        self.component_names = component_names

    def plot(self, ax: Any = None) -> Any:
        """Draw what was released.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : ScoreDisplay
            The display.
        """
        needed = "ScoreDisplay draws a fitted DPScoreDensity. Got an instance of %(name)s."
        check_is_fitted(self.estimator, "limits_", msg=needed)
        self.ax_, self.figure_ = ax, _ = axes_of(ax, (6.4, 5.2))
        self.density_, self.contours_ = None, []
        if self.estimator.kind_ == "density":
            self._draw_density()
        else:
            self._draw_ellipses()
        self.arrows_ = self._draw_loadings()
        (left, right), (low, high) = self.estimator.limits_
        ax.set(xlim=(left, right), ylim=(low, high))
        ax.set_xlabel(self.component_names[0])
        ax.set_ylabel(self.component_names[1])
        ax.set_title(textwrap.fill(self._promise(), 72), fontsize="small")
        if self.contours_ and hasattr(self.estimator, "classes_"):
            outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
            inside = {"loc": "best", "framealpha": 0.8}
            ax.legend(fontsize="small", **(inside if self.density_ else outside))
        return self

    # -- parts of the picture --------------------------------------------------------------

    def _draw_density(self):
        fitted, ax = self.estimator, self.ax_
        total = fitted.density_.sum(axis=0)
        edges = [np.linspace(*ends, len(total) + 1) for ends in fitted.limits_]
        shown = np.ma.masked_less_equal(total, 0)
        self.density_ = ax.pcolormesh(*edges, shown.T, cmap="Blues", vmin=0, rasterized=True)
        bar = self.figure_.colorbar(self.density_, ax=ax, shrink=0.8)
        bar.set_label("rows in a cell (released, smoothed)")
        middles = [(e[1:] + e[:-1]) / 2 for e in edges]
        for i, label, color, line in self._shown_classes():
            density = fitted.density_[i]
            levels = sorted({mass_level(density, share) for share in (_MOST, _HALF)})
            style = {"colors": [color], "linewidths": [1.0, 2.0], "linestyles": [line]}
            contour = ax.contour(*middles, density.T, levels=levels, **style)
            ax.plot([], [], color=color, linestyle=line, linewidth=2, label=label)
            self.contours_.append(contour)

    def _draw_ellipses(self):
        fitted = self.estimator
        fill = 0.6 / max(4, len(fitted.means_))
        for i, label, color, line in self._shown_classes(always=True):
            for share, width in ((_HALF, 2.0), (_MOST, 0.6)):
                patch = self._ellipse(i, share, edgecolor=color, linewidth=width, linestyle=line)
                if share == _HALF:
                    patch.set_facecolor((color, fill))
                self.contours_.append(self.ax_.add_patch(patch))
            name = f"{label}: about {max(0, round(float(fitted.class_counts_[i])))} rows"
            self.ax_.plot([], [], color=color, linestyle=line, linewidth=2, label=name)
            words = {"color": color, "weight": "bold", "ha": "center", "va": "center"}
            self.ax_.text(*fitted.means_[i], label, **words)

    def _ellipse(self, i, share, **style):
        """Return where a share of a normal density of this mean and covariance lies."""
        from matplotlib.patches import Ellipse

        values, vectors = np.linalg.eigh(self.estimator.covariances_[i])
        minor, major = 2 * math.sqrt(-2 * math.log(1 - share)) * np.sqrt(values)
        angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1]))
        style |= {"angle": angle, "facecolor": "none"}
        return Ellipse(self.estimator.means_[i], major, minor, **style)

    def _shown_classes(self, always=False):
        """Yield (number, name, color, line) of classes above the noise, or of all rows."""
        classes = getattr(self.estimator, "classes_", None)
        if classes is None and not always:
            return
        names = ["all rows"] if classes is None else [str(label) for label in classes]
        for i, name in enumerate(names):
            if self.estimator.above_noise_[i]:
                yield i, name, COLORS[i % len(COLORS)], _LINES[i // len(COLORS) % len(_LINES)]

    def _draw_loadings(self):
        axes = np.asarray(self.estimator.axes_)
        lengths = np.hypot(*axes)
        longest = np.argsort(-lengths)[: self.n_loadings]
        middle = self.estimator.limits_.mean(axis=1)
        # the longest arrow takes 0.8 of half the picture; one below 0.2 of it is not drawn
        room = 0.8 * (self.estimator.limits_[:, 1] - middle) / lengths.max()
        arrow = {"arrowstyle": "<-", "color": GREY, "shrinkA": 6, "shrinkB": 0}
        words = {"color": GREY, "fontsize": "small", "ha": "center", "va": "center"}
        words["bbox"] = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
        return [
            self.ax_.annotate(
                self._name(j), middle, middle + room * axes[:, j], arrowprops=arrow, **words
            )
            for j in longest
            if lengths[j] > 0.2 * lengths.max()
        ]

    def _name(self, j):
        names = self.feature_names
        if names is None:
            names = getattr(self.estimator, "feature_names_in_", None)
        return f"x{j}" if names is None else str(names[j])

    def _promise(self):
        spent = self.estimator.privacy_spent_
        if math.isinf(spent.epsilon):
            return "not private: epsilon is infinite"
        what = "one row" if spent.adjacency == "add_remove" else "a replaced row"
        seeded = "; seeded, so not private" if spent.seeded else ""
        left = int(np.count_nonzero(~self.estimator.above_noise_))
        left = f"; {left} class(es) below the noise left out" if left else ""
        return (
            f"epsilon={spent.epsilon:.3g}, delta={spent.delta:.0e} for {what}; the axes cost more"
            f"{seeded}{left}"
        )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        n_loadings: int = 6,
        feature_names: Any = None,
        component_names: Any = ("component 1", "component 2"),
        ax: Any = None,
    ) -> Any:
        """Draw what a fitted `DPScoreDensity` released.

        Parameters
        ----------
        estimator : DPScoreDensity
            Fitted.
        n_loadings : int, default=6
            How many features get an arrow.
        feature_names : list of str or None, default=None
            Names of the features; None takes those that the estimator saw, or numbers.
        component_names : pair of str, default=("component 1", "component 2")
            Labels of the axes.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : ScoreDisplay
            The display.
        """
        display = cls(
            estimator, n_loadings=n_loadings, feature_names=feature_names,
            component_names=component_names,
        )  # fmt: skip
        return display.plot(ax)

"""Where private rows lie in a plane, as it was released."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp.plotting._style import COLORS, GREY, axes_of, rgb, wrapped
from skdp.solvers.density import mass_level

_HALF, _MOST = 0.5, 0.9  # shares of the rows of a class that its contours hold
_ARROW = 0.8  # of half the picture: the longest loading
_SHORT = 0.2  # of the longest loading: no arrow
_LINES = ("-", "--", ":", "-.")


class ScoreDisplay:
    """The score plot of a private fit: a shaded density, a contour for each class, loadings.

    Everything in it was released by the fit. It shows no row: cells in which noise alone would
    reach are empty, and classes below the noise are left out.

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
    >>> X = np.random.default_rng(0).standard_normal((5000, 3))
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
        check_is_fitted(self.estimator, "limits_")
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
        ax.set_title(wrapped(self._promise(), 72), fontsize="small")
        if self.contours_ and hasattr(self.estimator, "classes_"):
            beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
            inside = {"loc": "best", "framealpha": 0.8}
            ax.legend(fontsize="small", **(inside if self.density_ else beside))
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
        for i, label in self._shown_classes():
            density = fitted.density_[i]
            levels = sorted({mass_level(density, share) for share in (_MOST, _HALF)})
            color = COLORS[i % len(COLORS)]
            line = _LINES[i // len(COLORS) % len(_LINES)]
            style = {"colors": [color], "linewidths": [1.0, 2.0], "linestyles": [line]}
            contour = ax.contour(*middles, density.T, levels=levels, **style)
            ax.plot([], [], color=color, linestyle=line, linewidth=2, label=label)
            self.contours_.append(contour)

    def _draw_ellipses(self):
        fitted = self.estimator
        fill = 0.6 / max(4, len(fitted.means_))
        for i, label in self._shown_classes(always=True):
            color, line = COLORS[i % len(COLORS)], _LINES[i // len(COLORS) % len(_LINES)]
            for share, width in ((_HALF, 2.0), (_MOST, 0.6)):
                patch = self._ellipse(i, share, edgecolor=color, linewidth=width, linestyle=line)
                if share == _HALF:
                    patch.set_facecolor((*rgb(color), fill))
                self.contours_.append(self.ax_.add_patch(patch))
            name = f"{label}: {self._size(i)} rows"
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

    def _size(self, i):
        return f"about {max(0, round(float(self.estimator.class_counts_[i])))}"

    def _shown_classes(self, always=False):
        """Yield (number, name) of the classes above the noise; without classes, of all rows."""
        classes = getattr(self.estimator, "classes_", None)
        if classes is None and not always:
            return
        names = ["all rows"] if classes is None else [str(label) for label in classes]
        yield from ((i, name) for i, name in enumerate(names) if self.estimator.seen_[i])

    def _draw_loadings(self):
        axes = np.asarray(self.estimator.axes_)
        lengths = np.hypot(*axes)
        longest = np.argsort(-lengths)[: self.n_loadings]
        middle = self.estimator.limits_.mean(axis=1)
        room = _ARROW * (self.estimator.limits_[:, 1] - middle) / lengths.max()
        arrow = {"arrowstyle": "<-", "color": GREY, "shrinkA": 6, "shrinkB": 0}
        words = {"color": GREY, "fontsize": "small", "ha": "center", "va": "center"}
        return [
            self.ax_.annotate(
                self._name(j),
                middle,
                middle + room * axes[:, j],
                arrowprops=arrow,
                **words,
            )
            for j in longest
            if lengths[j] > _SHORT * lengths.max()
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
        what = "add or remove a row" if spent.adjacency == "add_remove" else "replace a row"
        seeded = "; seeded, so not private" if spent.seeded else ""
        left = int(np.count_nonzero(~self.estimator.seen_))
        left = f"; {left} class(es) below the noise left out" if left else ""
        return (
            f"no row is shown: ε = {spent.epsilon:.3g}, δ = {spent.delta:.0e} to {what}, beside "
            f"what the axes cost{seeded}{left}"
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

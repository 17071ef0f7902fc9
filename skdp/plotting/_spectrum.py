"""Released eigenvalues beside the edge of the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp.plotting._scree import cumulative_share, noise_edge, released_values
from skdp.plotting._style import COLORS, GREY, axes_of


class SpectrumDisplay:
    """Released eigenvalues or singular values, and how far noise alone would reach.

    Everything in it was released by the fit. Values inside the shaded band say nothing: the noise
    of privacy alone has eigenvalues of that size. What stands above it is variance that the rows
    have; many rows without any structure have it in every direction.

    Parameters
    ----------
    values : array-like of shape (n_values,)
        Released values, in descending order.
    noise_edge : float or None, default=None
        What noise alone shows at most, the noise of a released mean too; None where it is not
        known.
    n_kept : int or None, default=None
        How many of the values the model keeps; None is all.
    quantity : str, default="eigenvalue"
        What the values are, with their unit.
    estimator_name : str or None, default=None
        Name for the title.
    cumulative : pair of arrays or None, default=None
        Shares of the variance that the first components hold, and their standard deviations.

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
    share_ : artist or None
        The cumulative share as far as components stand above the noise, on an axis of its own, with
        its interval of 95% (the noise is known).

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.plotting import SpectrumDisplay
    >>> X = np.random.default_rng(0).standard_normal((500, 6))
    >>> display = SpectrumDisplay.from_estimator(DPPCA(2, clip_norm=3.0).fit(X))
    >>> len(display.values)
    2
    """

    def __init__(
        self, values, *, noise_edge=None, n_kept=None, quantity="eigenvalue", estimator_name=None,
        cumulative=None,
    ):  # fmt: skip
        self.values = np.asarray(values, dtype=np.float64)
        self.noise_edge = noise_edge
        self.n_kept = len(self.values) if n_kept is None else n_kept
        self.quantity = quantity
        self.estimator_name = estimator_name
        self.cumulative = cumulative

    @property
    def n_above_noise(self) -> Any:
        """How many values noise alone would not show; None where its edge is not known.

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
        self.share_ = None if self.cumulative is None else self._draw_share(numbers)
        return self

    def _draw_share(self, numbers):
        """Draw the cumulative share, as far as components stand above the noise."""
        known = slice(self.n_above_noise)
        shares, deviations = (np.asarray(part)[known] for part in self.cumulative)
        axis = self.ax_.twinx()
        low, high = (np.clip(shares + side * deviations, 0, 1) for side in (-1.96, 1.96))
        (line,) = axis.plot(numbers[known], shares, color=COLORS[2], marker=".", linewidth=1.2)
        axis.errorbar(
            numbers[known], shares, (shares - low, high - shares), fmt="none", color=COLORS[2],
            capsize=3,
        )  # fmt: skip
        axis.set_ylim(0, 1.05)
        axis.set_ylabel("share of the variance up to here, 95%", color=COLORS[2])
        return line

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
        check_is_fitted(estimator, "ledger_")
        values, quantity, squared = released_values(estimator)
        edge = noise_edge(estimator, len(values))
        display = cls(
            values,
            noise_edge=edge if squared else None,
            n_kept=getattr(estimator, "n_components_", None),
            quantity=quantity,
            estimator_name=type(estimator).__name__,
            cumulative=cumulative_share(estimator),
        )
        return display.plot(ax)

    @classmethod
    def from_values(
        cls,
        values: Any,
        *,
        noise_edge: Any = None,
        n_kept: Any = None,
        quantity: str = "eigenvalue",
        ax: Any = None,
    ) -> Any:
        """Draw a spectrum from numbers.

        Parameters
        ----------
        values : array-like of shape (n_values,)
            Released values, in descending order.
        noise_edge : float or None, default=None
            Largest value that noise alone has.
        n_kept : int or None, default=None
            How many are kept; None is all.
        quantity : str, default="eigenvalue"
            What the values are, with their unit.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : SpectrumDisplay
            The display.
        """
        return cls(values, noise_edge=noise_edge, n_kept=n_kept, quantity=quantity).plot(ax)

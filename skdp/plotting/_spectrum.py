"""Released eigenvalues beside the edge of the noise."""

import math

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp.plotting._style import COLORS, GREY, axes_of
from skdp.privacy.streams.correlated import stream_schedule
from skdp.solvers.postprocess import mean_push

_SYMMETRIC = ("gram", "moment", "votes", "pairs")
_SKETCHES = ("matrix", "right_sketch", "left_sketch")
_PRODUCTS = ("tangent_product", "gram_product", "right_product", "left_product", "product")
# Of order k: where the values themselves were read. Edge over the noise scale times sqrt(k).
_READ_OFF = {"projected_gram": math.sqrt(2), "ritz": math.sqrt(2), "core": 2.0}


class SpectrumDisplay:
    """Released eigenvalues or singular values, and how far noise alone would reach.

    Everything in it was released by the fit. Values inside the shaded band say nothing: noise alone
    has eigenvalues of that size.

    Parameters
    ----------
    values : array-like of shape (n_values,)
        Released values, in descending order.
    noise_edge : float or None, default=None
        Largest value that noise alone has; None where it is not known.
    n_kept : int or None, default=None
        How many of the values the model keeps; None is all.
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
    >>> X = np.random.default_rng(0).standard_normal((500, 6))
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

    def plot(self, ax=None):
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
        ax.set_title(f"{name}released spectrum")
        ax.legend(fontsize="small")
        return self

    @classmethod
    def from_estimator(cls, estimator, *, ax=None):
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
        )
        return display.plot(ax)

    @classmethod
    def from_values(cls, values, *, noise_edge=None, n_kept=None, quantity="eigenvalue", ax=None):
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


def released_values(estimator):
    """Return (values, what they are, whether `noise_edge` is in their unit)."""
    values = getattr(estimator, "eigenvalues_", None)
    if values is not None:
        return values, "eigenvalue (released)", True
    values = getattr(estimator, "singular_values_", None)
    if values is None:
        raise ValueError(
            f"{type(estimator).__name__} released no spectrum: it has neither 'eigenvalues_' nor "
            "'singular_values_'. Use SpectrumDisplay.from_values."
        )
    if hasattr(estimator, "left_") or hasattr(estimator, "coef_"):
        known = hasattr(estimator, "left_")
        return values, "singular value (released)", known
    return values**2, "squared singular value (unit of X, squared)", True


def noise_edge(estimator, n_values):
    """Return how large a value noise alone would show, from the ledger; None if it is not known.

    A released symmetric matrix of order d: sigma sqrt(2 d). Products of T releases with n rows:
    sigma sqrt(n / T), as far as they average. The smallest of them says which directions are found.
    Their values may come from a later release of order k, and its noise may be larger: then that
    counts. Noisy sketches (or the matrix itself) of shape m x n: sigma (sqrt(m) + sqrt(n)),
    and what is found rises above both.
    """
    lines = estimator.ledger_
    if {line.name for line in lines} & set(_SKETCHES):
        return max(sketch_edge(estimator, line) for line in lines) or None
    edges = []
    for name in {line.name for line in lines}:
        scales = [release_noise(estimator, line) for line in lines if line.name == name]
        if name in _SYMMETRIC:
            d = estimator.n_features_in_ + (name == "moment")
            edges.append(min(scales) * math.sqrt(2 * d / len(scales)))
        elif name in _PRODUCTS:
            precision = sum(1 / scale**2 for scale in scales if scale > 0)
            size = estimator.n_features_in_
            if name == "right_product":
                size = len(
                    getattr(estimator, "left_", getattr(estimator, "embedding_", range(size)))
                )
            edges.append(math.sqrt(size / precision) if precision else 0.0)
    found = min(edges, default=0.0) + _push_of_mean(estimator)
    read_off = max(
        (
            line.noise_scale * _READ_OFF[line.name] * math.sqrt(n_values)
            for line in estimator.ledger_
            if line.name in _READ_OFF
        ),
        default=0.0,
    )
    return max(found, read_off) or None


def _push_of_mean(estimator):
    """Return what the error of a mean that was released by itself adds to the moment about it."""
    sums = [line.noise_scale for line in estimator.ledger_ if line.name == "sums"]
    if not sums or not hasattr(estimator, "n_samples_") or not hasattr(estimator, "mean_"):
        return 0.0
    return mean_push(sums[0], max(1, estimator.n_samples_), estimator.n_features_in_)


def release_noise(estimator, line):
    """Return the noise of the last release: a stream has more of it than its ledger line shows."""
    steps = getattr(estimator, "n_releases_", None)
    if steps is None or " stream of " not in line.mechanism:
        return line.noise_scale
    mechanism = "sqrt" if "square-root" in line.mechanism else "tree"
    window = getattr(estimator, "window", None)
    schedule = stream_schedule(1, estimator.max_releases, mechanism, window)
    return line.noise_scale * schedule.unit * schedule.noise_factor(steps)


def sketch_edge(estimator, line):
    """Return the edge of the noise of one sketch of a factorizer; 0 for other releases."""
    m, n = len(estimator.left_), estimator.n_features_in_
    shapes = {
        "matrix": (m, n),
        "right_sketch": (m, estimator.sketch_size_),
        "left_sketch": (estimator.core_size_, n),
    }
    a, b = shapes.get(line.name, (0, 0))
    return release_noise(estimator, line) * (math.sqrt(a) + math.sqrt(b))

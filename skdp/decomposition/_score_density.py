"""A picture of private rows in the plane of two released components, with differential privacy."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import check_rows
from skdp._labels import check_kind
from skdp._placed import check_placed
from skdp._scales import column_weights, warn_unclear_columns
from skdp._types import Seed, Split
from skdp._validation import check_split
from skdp.base import BaseDPEstimator, atomic
from skdp.data.blocks import row_source
from skdp.data.places import Placed
from skdp.data.records import RecordForm
from skdp.decomposition._score_parameters import ScoreParametersMixin, cell_noise, class_column
from skdp.decomposition._score_planning import ScorePlansMixin
from skdp.exceptions import PrivacyWarning, warn_caller
from skdp.queries.plane import COUNT, SQUARE, Frame, PlaneQuery
from skdp.solvers.columns import column_moments, find_columns
from skdp.solvers.density import (
    FEWEST_CELLS,
    ShapeWeights,
    cells_per_side,
    class_shapes,
    smoothed,
)

_DEVIATIONS = 3.0  # that a frame reaches from its centre
_FOUND = 0.7  # of the share "frame": what finds it; its moments have the rest
_MUCH_OUTSIDE = 0.2


class DPScoreDensity(ScoreParametersMixin, ScorePlansMixin, BaseDPEstimator):
    """Where private rows lie in a public plane, with (epsilon, delta)-privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X with its label, whatever the data are: a row counts
    in one cell of a histogram, or in the moments of one class. They take the place of a scatter
    plot of projected rows, which no epsilon covers. The plane is public: that of two components of
    a private model (`from_model`), whose own budget was spent by its fit.

    Parameters
    ----------
    axes : array of shape (2, n_features) or None, default=None
        Public directions that rows are multiplied by; None takes the first two columns.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; 0 (pure) with ``kind="density"`` and public `limits`.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" it is public.
    kind : {"auto", "density", "ellipse"}, default="auto"
        "density" releases a histogram (of each class); "ellipse" the size, mean and covariance of
        each class, which needs far fewer rows. "auto" takes the histogram where released class
        sizes fill at least ten cells a side.
    classes : list or None, default=None
        Public classes: y is then needed, and private. Rows with another label are left out.
    center : array of shape (n_features,) or None, default=None
        Public point that is subtracted first; None is the origin.
    limits : array of shape (2, 2) or "auto", default="auto"
        Public ends (low, high) of both coordinates. "auto" spends a fifth of the budget to find
        them, three standard deviations about the mean.
    n_bins : int or "auto", default="auto"
        Cells of a side of the histogram; "auto" follows released class sizes and the noise.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
    n_jobs : int or None, default=None
        Threads for the passes over the rows; it never changes the result.

    Attributes
    ----------
    kind_ : str
        "density" or "ellipse".
    limits_ : ndarray of shape (2, 2)
        Ends of both coordinates: given, or released.
    counts_ : ndarray of shape (n_classes, n_bins, n_bins)
        Released numbers of rows in the cells ("density"; one class if none are given).
    density_ : ndarray of shape (n_classes, n_bins, n_bins)
        The counts smoothed over neighbours, 0 where noise alone would reach ("density").
    outside_ : float
        Released number of rows outside the limits ("density").
    class_counts_ : ndarray of shape (n_classes,)
        Released numbers of rows, where they were released by themselves or for ellipses.
    means_ : ndarray of shape (n_classes, 2)
        Released means in the plane ("ellipse").
    covariances_ : ndarray of shape (n_classes, 2, 2)
        Released covariances in the plane ("ellipse").
    seen_ : ndarray of bool of shape (n_classes,)
        Whether a class stands out of the noise.
    noise_scale_ : float
        Standard deviation of the noise on one cell, or on one count.
    axes_ : ndarray of shape (2, n_features)
        The directions that were used.
    classes_ : ndarray of shape (n_classes,)
        The public classes, if there are any.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt.
    ledger_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    skdp.plotting.ScoreDisplay : Draws it.
    DPPCA : Releases components that span a plane.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA, DPScoreDensity
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20000, 4)) * [4.0, 2.0, 0.5, 0.5]
    >>> pca = DPPCA(n_components=2, epsilon=1.0, clip_norm=12.0).fit(X)
    >>> picture = DPScoreDensity.from_model(pca, epsilon=1.0).fit(X)
    >>> picture.kind_
    'density'
    >>> picture.privacy_spent_
    (ε=1, δ=1e-06) row
    """

    def __init__(
        self,
        axes: ArrayLike | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        kind: str = "auto",
        classes: Iterable[Any] | None = None,
        center: ArrayLike | str | None = None,
        limits: ArrayLike | str = "auto",
        n_bins: int | str = "auto",
        budget_split: Split = "auto",
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.axes = axes
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.kind = kind
        self.classes = classes
        self.center = center
        self.limits = limits
        self.n_bins = n_bins
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @classmethod
    def from_model(cls, model: BaseEstimator, components: Any = (0, 1), **params: Any) -> Any:
        """Return an unfitted picture in the plane of two components of a fitted model.

        Its released (or public) components and mean become parameters, for free.

        Parameters
        ----------
        model : estimator
            Fitted and released: `DPPCA`, `DPTruncatedSVD`, or any model with `components_`.
        components : pair of int, default=(0, 1)
            Which two components.
        **params : dict
            Further parameters, as `epsilon` and `classes`.

        Returns
        -------
        picture : DPScoreDensity
        """
        check_is_fitted(model, "components_")
        chosen = list(components)
        if len(chosen) != 2 or not all(0 <= i < len(model.components_) for i in chosen):
            raise ValueError(
                f"'components' must be two of the {len(model.components_)} components of "
                f"{type(model).__name__}; fit it with at least two. Got {components!r}."
            )
        axes = np.asarray(model.components_, np.float64)[chosen]
        facts = {"center": getattr(model, "mean_", None)}
        return cls(axes, **(facts | params))

    @atomic
    def fit(self, X: Any, y: Any = None) -> Self:
        """Release where rows lie; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private rows; blocks as in `DPPCA`.
        y : array-like of shape (n_samples,), default=None
            The private labels, if there are `classes`; else ignored.

        Returns
        -------
        self : DPScoreDensity
            The fitted estimator.
        """
        self._check_parameters()
        check_kind(self, y)
        session = self._open_session()
        if self.classes is None:
            rows = check_rows(self, X, accept_sparse="csr")
        else:
            rows = check_placed(self, X, y, numbers=False)
        return self._close_session(session, self._fit_session(session, rows))

    def _fit_session(self, session, rows):
        """Make all releases; the rows are read by the session alone."""
        classes, source = self._classes(), rows
        if isinstance(rows, Placed):
            form = RecordForm(partial(class_column, classes=classes), 1)
            source = rows.joined(form)
        source = row_source(source)
        axes, center = self._plane(source.n_features)
        shares = check_split(self, self._default_shares())
        query = PlaneQuery(
            source, axes, center, len(classes), adjacency=self.adjacency, n_jobs=self.n_jobs
        )
        n = float(query.n_rows) if self.adjacency == "replace" else None
        self._warn_of_delta(n or 0)
        ask = session.ask(query)
        frame = self._frame(session, ask, shares, n)
        side, attributes = self._side(session, ask, shares, n)
        attributes |= self._picture(ask, frame, side, len(classes), shares["density"])
        self._warn_of_nothing(attributes)
        low, high = frame.center - frame.half, frame.center + frame.half
        attributes |= {"axes_": axes, "limits_": np.column_stack([low, high])}
        return attributes | ({"classes_": classes} if len(classes) else {})

    def _frame(self, session, ask, shares, n):
        """Return the window: public, or three released deviations about a released mean."""
        if not self._learns_limits():
            return self._public_frame()
        ask, weights = ask.coordinates(), column_weights(2)
        search, last = _FOUND * shares["frame"], (1 - _FOUND) * shares["frame"]
        center, size = np.zeros(2), np.full(2, np.inf)
        if not session.budget.exact:
            found = find_columns(ask, 2, search, n)
            words = {"outcome": "and took a low guess", "remedy": "'limits'", "of": "coordinates"}
            warn_unclear_columns(self, ~found.found, found.needed, **words)
            center, size = found.center, found.reach(found.sums_noise(last / search))
        sums = ask.moments(center, size, weights.rows, share=last)
        moments = column_moments(*sums, center, size, weights=weights, n=n)
        half = _DEVIATIONS * np.sqrt(moments.variance)
        return Frame(moments.mean, np.where(half > 0, half, 1.0))

    def _side(self, session, ask, shares, n):
        """Return the cells of a side (0 for ellipses), and released class sizes if there are any.

        The noise of a cell is public before it is released.
        """
        attributes = {}
        if "counts" in shares:
            attributes["class_counts_"] = ask.class_counts(share=shares["counts"]).value
            n = float(np.median(attributes["class_counts_"]))
        if self.kind == "ellipse":
            return 0, attributes
        side = self.n_bins
        if side == "auto" or self.kind == "auto":
            room = cells_per_side(n, cell_noise(self, session, shares["density"]))
            side = room if side == "auto" else side
            if self.kind == "auto" and room < FEWEST_CELLS:
                return 0, attributes
        return max(2, side), attributes

    def _picture(self, ask, frame, side, n_classes, share):
        if not side:
            sums = ask.shapes(frame, share=share)
            shapes = class_shapes(*sums, ShapeWeights(COUNT, SQUARE), frame.center, frame.half)
            found = {f"{name}_": value for name, value in shapes._asdict().items()}
            found["class_counts_"] = found.pop("counts_")
            return found | {"kind_": "ellipse", "noise_scale_": sums.noise_scale}
        cells = ask.cells(frame, side, share=share)
        counts = cells.value[:-1].reshape(max(1, n_classes), side, side)
        density = smoothed(counts, cells.noise_scale)
        return {
            "kind_": "density",
            "counts_": counts,
            "density_": density,
            "outside_": float(cells.value[-1]),
            "seen_": density.any(axis=(1, 2)),
            "noise_scale_": cells.noise_scale,
        }

    def _warn_of_nothing(self, attributes):
        """Say what released numbers cannot show."""
        name = type(self).__name__
        said = ""
        if not attributes["seen_"].any():
            said = f"{name} shows nothing: no {attributes['kind_']} stands out of the noise. Use "
            said += "more rows, a larger 'epsilon', or kind='ellipse' with fewer classes."
        elif attributes["kind_"] == "density":
            inside, outside = attributes["counts_"].sum(), attributes["outside_"]
            if outside > _MUCH_OUTSIDE * max(1.0, inside + outside):
                share = outside / (inside + outside)
                said = f"About {share:.0%} of the rows lie outside the limits of {name}. Use "
                said += "limits='auto', or wider public 'limits'."
        if said:
            warn_caller(said, PrivacyWarning)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self.classes is not None
        return tags

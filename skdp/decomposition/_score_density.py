"""A picture of private rows in the plane of two released components, with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skdp import _validation
from skdp._inputs import check_placed, check_rows
from skdp._limits import COUNT_WEIGHT, LARGEST_SIZE, SMALLEST_SIZE
from skdp.base import BaseDPEstimator, atomic, warn_undetected_columns
from skdp.data.blocks import row_source
from skdp.data.units import Placed
from skdp.data.views import RecordForm
from skdp.exceptions import (
    NoSignalWarning,
    PartialSignalWarning,
    PrivacyUnitWarning,
    PrivacyWarning,
    warn_caller,
)
from skdp.queries.plane import SQUARE, Frame, PlaneQuery
from skdp.queries.sums import Neighbours
from skdp.solvers.columns import find_columns, release_moments
from skdp.theory import PlanData, PlansMixin
from skdp.theory._plan import rows_drawn
from skdp.units import unit_of

# Half-width of a learnt frame, in deviations; size of the smallest shown class, in noise scales.
_DEVIATIONS = 3.0
_MUCH_OUTSIDE = 0.2
_KERNEL = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
_BLUR = float(_KERNEL @ _KERNEL)  # noise of one cell after smoothing along both axes
_MOST = 48
_FEWEST = 10  # cells per side, for a histogram to show a shape


class DensityPlans(PlansMixin):
    """Plans of pictures: rows of equally large classes, one cloud each."""

    _measure = "overlap of the released picture with that of the rows"

    def _made(self, rng, n, d):
        classes = [None] if self.classes is None else list(_validation.check_classes(self, least=1))
        rows, frame = rows_drawn(n, d), self._public_frame()
        axes, origin = self._plane(d)
        labels = rng.integers(0, len(classes), rows)
        scores = rng.standard_normal((rows, 2)) + 2 * rng.standard_normal((len(classes), 2))[labels]
        if frame is not None:
            scores = frame.center + frame.half_width * scores / max(
                _DEVIATIONS, np.abs(scores).max()
            )
        X = origin + scores @ np.linalg.pinv(axes).T
        y = None if self.classes is None else np.asarray(classes)[labels]

        def score(model):
            kept = [labels == i for i in range(len(classes))]
            if model.kind_ == "ellipse":
                true = np.array([scores[rows].mean(axis=0) for rows in kept])
                size = scores.std(axis=0)
                off = np.linalg.norm((model.means_ - true) / size, axis=1)
                return 1 - float(np.mean(np.minimum(off, 1.0)))
            side, limits = model.density_.shape[-1], model.limits_
            true = [np.histogram2d(*scores[rows].T, side, limits)[0] for rows in kept]
            parts = [[table / max(table.sum(), 1e-300) for table in tables]
                     for tables in (model.density_, true)]  # fmt: skip
            return float(np.minimum(*parts).sum(axis=(1, 2)).mean())

        said = f"{rows} rows in {len(classes)} round cloud(s)"
        return PlanData(lambda model: model.fit(X, y), score, (said,), n / rows)


class DPScoreDensity(DensityPlans, BaseDPEstimator):
    """Density of private rows in a public plane, with (epsilon, delta)-privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X with its label, whatever the data are: a row counts
    in one bin of a histogram, or in the moments of one class. They replace a scatter plot of
    projected rows, which no epsilon covers. The plane is public, for example that of two components
    of a private model (`from_model`), whose fit has a budget of its own.

    Parameters
    ----------
    axes : array of shape (2, n_features) or None, default=None
        Public directions on which rows are projected; None takes the first two columns.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; 0 (pure, with less noise) with ``kind="density"`` and
        public `limits`.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" it is public.
    kind : {"auto", "density", "ellipse"}, default="auto"
        "density" releases a histogram of each class. "ellipse" releases size, mean and covariance
        of each class, which needs far fewer rows. "auto" takes the histogram if the released class
        sizes allow at least ten bins per axis.
    classes : list or None, default=None
        Public classes: y is then required, and private. Rows with another label do not count.
    center : array of shape (n_features,) or None, default=None
        Public point that is subtracted first; None is the origin.
    limits : array of shape (2, 2) or "auto", default="auto"
        Public ends (low, high) of both coordinates. "auto" spends a fifth of the budget to find
        them: three standard deviations about the mean of truncated coordinates. They may leave out
        up to a tenth of the coordinates, if these lie far from the others.
    n_bins : int or "auto", default="auto"
        Bins per axis of the histogram; "auto" follows from released class sizes and the noise.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    kind_ : str
        "density" or "ellipse".
    limits_ : ndarray of shape (2, 2)
        Ends of both coordinates: given, or released.
    histogram_ : ndarray of shape (n_classes, n_bins, n_bins)
        Released numbers of rows in the bins ("density"; one class if none are given).
    density_ : ndarray of shape (n_classes, n_bins, n_bins)
        The counts smoothed over neighbouring bins, 0 below the noise level ("density").
    n_outside_ : float
        Released number of rows outside the limits ("density").
    class_counts_ : ndarray of shape (n_classes,)
        Released numbers of rows in each class.
    means_ : ndarray of shape (n_classes, 2)
        Released means in the plane ("ellipse").
    covariances_ : ndarray of shape (n_classes, 2, 2)
        Released covariances in the plane ("ellipse").
    above_noise_ : ndarray of bool of shape (n_classes,)
        Whether a class exceeds the noise.
    noise_scale_ : float
        Standard deviation of the noise of one bin, or of one count.
    axes_ : ndarray of shape (2, n_features)
        The directions that were used.
    classes_ : ndarray of shape (n_classes,)
        The public classes, if there are any.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    skdp.plotting.ScoreDisplay : Draws the result.
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
    (epsilon=1, delta=1e-06) row
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
        center: ArrayLike | None = None,
        limits: ArrayLike | str = "auto",
        n_bins: int | str = "auto",
        budget_split: _validation.Split = "auto",
        random_state: _validation.Seed = None,
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

        Its released (or public) components and mean become parameters, at no cost. It warns if
        both components are noise, if the model is not private, or if it protects groups: the
        picture protects rows only.

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
        if hasattr(model, "steps"):
            raise TypeError("from_model takes the fitted model of a Pipeline: pass pipeline[-1].")
        check_is_fitted(model, "components_")
        chosen = list(components)
        if len(chosen) != 2 or not all(0 <= i < len(model.components_) for i in chosen):
            raise ValueError(
                f"'components' must be two of the {len(model.components_)} components of "
                f"{type(model).__name__}; fit it with at least two. Got {components!r}."
            )
        name = type(model).__name__
        if not np.any(np.asarray(getattr(model, "explained_variance_ratio_", np.ones(2)))[chosen]):
            said = f"{name} explains no variance by components {chosen}: the axes are noise. Refit"
            warn_caller(f"{said} it with a larger 'epsilon', or more rows.", NoSignalWarning)
        if not hasattr(model, "privacy_spent_"):
            said = f"{name} has no guarantee: its components and its mean are exact. Use it for"
            warn_caller(f"{said} public rows alone, and DPPCA for private ones.", PrivacyWarning)
        if unit_of(model).of_groups:
            said = f"{name} protects groups, and DPScoreDensity single rows: with several rows per"
            warn_caller(f"{said} person, its guarantee is weaker for a person.", PrivacyUnitWarning)
        axes = np.asarray(model.components_, np.float64)[chosen]
        facts = {"center": getattr(model, "mean_", None)}
        return cls(axes, **(facts | params))

    @atomic
    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the density of the rows; this spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private rows; blocks as in `DPPCA`.
        y : array-like of shape (n_samples,), default=None
            The private labels, if there are `classes`; else ignored, with a warning.

        Returns
        -------
        self : DPScoreDensity
            The fitted estimator.
        """
        self._check_parameters()
        _validation.check_kind(self, y, least=1)
        if y is not None and self.classes is None:  # before the budget is spent
            said = "y was given without 'classes', so all rows are drawn alike. Pass the public"
            warn_caller(f"{said} list of labels as 'classes'.", PartialSignalWarning)
        session = self._open_session()
        if self.classes is None:
            rows = check_rows(self, X, accept_sparse="csr")
        else:
            rows = check_placed(self, X, y, numbers=False)
        return self._close_session(session, self._fit_session(session, rows))

    def _check_parameters(self):
        if hasattr(self.axes, "fit"):
            raise TypeError("'axes' is an estimator: use DPScoreDensity.from_model(fitted_model).")
        _validation.check_option(self, "kind", ("auto", "density", "ellipse"))
        n_bins = _validation.check_int(self, "n_bins", 2, also=("auto",))
        if n_bins != "auto" and n_bins > 1000:
            raise ValueError(f"'n_bins' must be at most 1000. Got {self.n_bins!r}.")
        self._public_classes()
        self._shares()

    def _public_classes(self):
        return () if self.classes is None else _validation.check_classes(self, least=1)

    def _shares(self):
        shares = {"limits": 0.2} if self._public_frame() is None else {}
        sized = self.kind == "auto" or (self.kind == "density" and self.n_bins == "auto")
        if sized and (self.classes is not None or self.adjacency == "add_remove"):
            shares["class_counts"] = 0.05
        shares["density"] = 1 - math.fsum(shares.values())
        return _validation.check_split(self, shares)

    def _offers_pure_dp(self):
        return self.kind == "density" and self._public_frame() is not None

    def _plane(self, d):
        """Return the public directions and the public point that is subtracted."""
        axes = np.eye(2, d) if self.axes is None else self.axes
        axes = _validation.public_array("axes", axes)
        if isinstance(self.center, str):
            raise ValueError(
                "'center' must be None (the origin) or a public point, such as `mean_` of a fitted "
                f"private model: the mean of X is private. Got center={self.center!r}."
            )
        center = np.zeros(d) if self.center is None else self.center
        center = _validation.public_array("center", center, ensure_2d=False)
        if axes.shape != (2, d) or center.shape != (d,) or not np.all(np.linalg.norm(axes, axis=1)):
            raise ValueError(
                f"'axes' must be two directions and 'center' a point of {d} feature(s), 2 or more. "
                f"Got shapes {axes.shape} and {center.shape}."
            )
        return axes, center

    def _public_frame(self):
        """Return the window that is given, or None where it is learnt."""
        if isinstance(self.limits, str) and self.limits == "auto":
            return None
        try:
            limits = np.asarray(self.limits, np.float64)
        except (TypeError, ValueError):
            limits = np.zeros(0)
        fine = limits.shape == (2, 2) and np.all(np.abs(limits) <= LARGEST_SIZE)
        if not fine or not np.all(limits[:, 1] - limits[:, 0] >= SMALLEST_SIZE):
            expected = "'auto' or ((low, high), (low, high)) in [-1e60, 1e60] with low < high"
            _validation.refuse_value(self, "limits", expected, self.limits)
        half = limits[:, 1] / 2 - limits[:, 0] / 2
        return Frame(limits[:, 0] + half, half)

    def _fit_session(self, session, rows):
        """Make all releases; the rows are read by the session alone."""
        classes, shares = self._public_classes(), self._shares()
        if isinstance(rows, Placed):
            rows = rows.joined(RecordForm(partial(_class_column, classes=classes), 1))
        source = row_source(rows)
        axes, center = self._plane(source.n_features)
        query = PlaneQuery(
            source, axes, center, len(classes), adjacency=self.adjacency, n_jobs=self.n_jobs
        )
        n = float(query.n_rows) if self.adjacency == "replace" else None
        self._warn_of_delta(n or 0)
        ask, found = session.ask(query), {}
        frame = self._public_frame() or self._learnt_frame(ask, shares["limits"], n)
        if "class_counts" in shares:
            found["class_counts_"] = ask.class_counts(share=shares["class_counts"]).value
            n = float(np.median(found["class_counts_"]))
        side = self._side(session, shares["density"], n)
        share = shares["density"]
        if side:
            found |= _cells(ask, frame, side, len(classes), share)
        else:
            sums = ask.shapes(frame, share=share)
            found |= class_shapes(*sums, frame) | {"noise_scale_": sums.noise_scale}
        self._warn_no_signal(found)
        low, high = frame.center - frame.half_width, frame.center + frame.half_width
        found |= {"axes_": axes, "limits_": np.column_stack([low, high])}
        return found | ({"classes_": classes} if len(classes) else {})

    def _learnt_frame(self, ask, share, n):
        """Return three released deviations about a released mean."""
        ask = ask.coordinates()
        share /= 2  # one half finds where they lie, the other has the moments there
        found = find_columns(ask, 2, share, n, tails=False)
        moments = release_moments(ask, found.center, found.radius(math.inf), n, share)
        # A scale below the noise may be the distance of the centre from the rows.
        unseen = ~found.found | (~found.center_found & (moments.variance <= moments.noise))
        words = {"outcome": "and used a guess", "remedy": "'limits'", "of": "coordinates"}
        warn_undetected_columns(self, unseen, found.needed, **words)
        half = _DEVIATIONS * np.sqrt(moments.variance)
        return Frame(moments.mean, np.where(half > 0, half, 1.0))

    def _side(self, session, share, n):
        """Return the number of cells per side, 0 for ellipses; from public noise scales."""
        if self.kind == "ellipse" or (self.kind == "density" and self.n_bins != "auto"):
            return 0 if self.kind == "ellipse" else self.n_bins
        units = Neighbours(self.adjacency).units
        room = cells_per_side(n, session.noise_scale(units, math.sqrt(units), share))
        if self.kind == "auto" and room < _FEWEST:
            return 0
        return max(2, room if self.n_bins == "auto" else self.n_bins)

    def _warn_no_signal(self, found):
        """Warn of what released numbers cannot show."""
        name, kind = type(self).__name__, found["kind_"]
        inside, outside = np.sum(found.get("histogram_", 0.0)), found.get("n_outside_", 0.0)
        if not found["above_noise_"].any():
            rows = "rows" if self.classes is None else "rows with a label in 'classes'"
            said = f"{name} learnt nothing from the data: no {kind} exceeds the noise. Use "
            said += "more" if kind == "ellipse" else "kind='ellipse', which needs fewer"
            warn_caller(f"{said} {rows}.", NoSignalWarning)
        elif outside > _MUCH_OUTSIDE * max(1.0, inside + outside):
            said = f"{name} could not draw about {outside / (inside + outside):.0%} of the rows: "
            said += "they lie outside 'limits'. Use limits='auto'."
            warn_caller(said, PartialSignalWarning)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self.classes is not None
        return tags


def _class_column(y, classes):
    """Return the number of the class of each label, -1 for none, as a column."""
    return _validation.class_numbers(y, classes).astype(np.float64)[:, None]


def _cells(ask, frame, side, n_classes, share):
    """Release a histogram of each class."""
    cells = ask.cells(frame, side, share=share)
    counts = cells.value[:-1].reshape(max(1, n_classes), side, side)
    density = smoothed(counts, cells.noise_scale)
    return {
        "kind_": "density", "histogram_": counts, "density_": density,
        "n_outside_": float(cells.value[-1]), "above_noise_": density.any(axis=(1, 2)),
        "noise_scale_": cells.noise_scale,
    }  # fmt: skip


def cells_per_side(n, noise_scale):
    """Return how many cells per side leave more rows than noise in a mean cell."""
    clear = max(n, 0.0) / noise_scale if noise_scale > 0 else math.inf
    return int(min(_MOST, math.sqrt(clear)))


def smoothed(counts, noise_scale):
    """Return counts smoothed over their neighbours, 0 below the noise level."""
    smoothed = counts
    for axis in (-1, -2):
        smoothed = np.apply_along_axis(np.convolve, axis, smoothed, _KERNEL, mode="same")
    # About the largest of so many smoothed cells of noise.
    edge = math.sqrt(2 * math.log(max(2, counts.size))) * _BLUR * noise_scale
    return np.where(smoothed > edge, smoothed, 0.0)


def class_shapes(sums, noise_scale, frame):
    """Read classes from sums of a, of w and of b ww', w a place in the frame."""
    table = sums.reshape(-1, 6)
    counts = table[:, 0] / COUNT_WEIGHT
    n = np.maximum(np.maximum(counts, 1.0), 2 * noise_scale / COUNT_WEIGHT)
    mean = np.clip(table[:, 1:3] / n[:, None], -1.0, 1.0)
    xx, yy = (table[:, 3:5] / SQUARE / n[:, None]).T
    xy = table[:, 5] / math.sqrt(2) / SQUARE / n
    second = np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -2)
    spread = noise_scale / n
    covariance = second - mean[:, :, None] * mean[:, None, :]
    covariance += np.square(spread)[:, None, None] * np.eye(2)  # of a noisy mean's square
    values, vectors = np.linalg.eigh(covariance)
    # A variance below its noise is drawn about as wide as the noise, not thin.
    values = np.clip(values, np.maximum(spread / SQUARE, 1e-12)[:, None], 1.0)
    covariance = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    seen = counts > _DEVIATIONS * noise_scale / COUNT_WEIGHT
    return {
        "kind_": "ellipse", "class_counts_": counts, "above_noise_": seen,
        "means_": frame.center + frame.half_width * mean,
        "covariances_": covariance * (frame.half_width[:, None] * frame.half_width),
    }  # fmt: skip

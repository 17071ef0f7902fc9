"""The local model: each person adds noise to their own row, and trusts nobody."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from skdp._inputs import advised, checked
from skdp._validation import check_count, check_int, check_size
from skdp.base import BaseDPEstimator, DocLinkMixin, atomic
from skdp.data.products import SketchMap
from skdp.decomposition._factorizer_state import draw_sketch
from skdp.privacy.streams.sketches import SketchSource
from skdp.queries.sketches import SketchUnit, Whole
from skdp.solvers.linalg import components_of


@dataclass(frozen=True)
class RandomizedRow:
    """One person's noisy row: it may be published.

    Attributes
    ----------
    values : ndarray
        The row, or its sketch, plus noise.
    noise_scale : float
        Standard deviation of the noise in each value.
    sketch_seed : int or None
        Public seed of the sketch; None: the row itself.
    privacy_spent : PrivacySpent
        The receipt: epsilon-delta local differential privacy for the whole row.
    """

    values: np.ndarray = field(repr=False)
    noise_scale: float
    sketch_seed: int | None
    privacy_spent: object


class LocalRowRandomizer(
    DocLinkMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Transformer that adds noise to rows on the device of their owner.

    Each row of ``transform(X)`` satisfies (`epsilon`, `delta`)-local differential privacy for the
    whole row, whoever receives it. *Each call spends it again*: two reports of one person add up.
    ``fit`` reads the number of columns only, and spends nothing. A row takes about a millisecond.
    Run it on the owner's device, and not on the server.

    Parameters
    ----------
    clip_norm : float, default=1.0
        Bound on the norm of a row, the same for everybody: longer rows are scaled down.
    epsilon, delta : float, default=1.0 and 1e-6
        Budget of one report.
    sketch_size, sketch_seed : int or None, default=None
        Report this many values of a public sketch instead of the row.
    random_state : int or None, default=None
        For tests: a seeded report is not private.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, when X has names that are all strings.

    See Also
    --------
    randomize_row : The function behind it, for one row.
    LocalAggregator : What the server computes from the reports.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.decomposition import LocalRowRandomizer
    >>> rows = np.random.default_rng(0).standard_normal((5, 3))
    >>> reporter = LocalRowRandomizer(epsilon=4.0)
    >>> reporter.fit_transform(rows).shape
    (5, 3)
    >>> reporter.report(rows[0]).privacy_spent
    (epsilon=4, delta=1e-06) row
    """

    def __init__(
        self,
        *,
        clip_norm: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        sketch_size: int | None = None,
        sketch_seed: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.clip_norm = clip_norm
        self.epsilon = epsilon
        self.delta = delta
        self.sketch_size = sketch_size
        self.sketch_seed = sketch_seed
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the number of columns; spends nothing.

        Parameters
        ----------
        X : array-like or CSR matrix of shape (n_samples, n_features)
            Rows; only their number of columns is read.
        y : Ignored
            Not used.

        Returns
        -------
        self : LocalRowRandomizer
            The fitted transformer.
        """
        check_int(self, "random_state", 0, none=True)
        X = checked(self, X, accept_sparse="csr")
        size = X.shape[1] if self.sketch_size is None else self.sketch_size
        self._n_features_out = min(size, X.shape[1])
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return one report of each row; spends the budget of each once more.

        Parameters
        ----------
        X : array-like or CSR matrix of shape (n_samples, n_features)
            Private rows.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_features) or (n_samples, sketch_size)
            Noisy rows, which may be published.
        """
        check_is_fitted(self, "_n_features_out")
        X = checked(self, X, accept_sparse="csr", reset=False)
        return np.array([self._reported(X[[i]], i).values for i in range(X.shape[0])])

    def report(self, row: Any) -> RandomizedRow:
        """Return the report of one row with its receipt; spends its budget once more.

        Parameters
        ----------
        row : array-like or sparse matrix of shape (n_features,) or (1, n_features)
            The private row.

        Returns
        -------
        report : RandomizedRow
        """
        return self._reported(row, 0)

    def _reported(self, row, place):
        params = self.get_params(deep=False)
        if self.random_state is not None:
            params["random_state"] = int(self.random_state) + place  # else rows share their noise
        return randomize_row(row, **params)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags


class _Reporter(BaseDPEstimator):
    """One release of one row: any two rows in the ball of `clip_norm` are neighbours."""

    _privacy_units = {"row": ("replace",)}
    privacy_unit = "row"
    adjacency = "replace"

    __init__ = LocalRowRandomizer.__init__  # of the same parameters

    @atomic
    def fit(self, X):
        check_size(self, "clip_norm")
        check_int(self, "sketch_size", 1, none=True)
        check_int(self, "sketch_seed", 0, none=True)
        if (self.sketch_size is None) != (self.sketch_seed is None):
            raise ValueError("'sketch_size' and 'sketch_seed' come together: the sketch is public.")
        session = self._open_session()
        row = advised(self, check_array, X, accept_sparse="csr", dtype=np.float64)
        if row.shape[0] != 1:
            raise ValueError(f"a local report is made of one row. Got {row.shape[0]} rows.")
        unit = SketchUnit("row", "replace", clip_norm=float(self.clip_norm))
        right = None
        if self.sketch_size is not None:
            source, n = SketchSource.of(session, self.sketch_seed), row.shape[1]
            right = draw_sketch(source, "local", "isometry", n, min(self.sketch_size, n))
        sketch = SketchMap("report", row.shape, None, right)
        paid = session.grant(unit.bound(sketch, random=False), 1.0)
        answer = paid.open(Whole(row, unit).answer(sketch))
        return self._close_session(session, {"answer_": answer})


_Reporter.__name__ = "randomize_row"  # what errors and ledgers call it


def randomize_row(
    row, *, clip_norm, epsilon, delta, sketch_size=None, sketch_seed=None, random_state=None
):
    """Return one person's noisy row, with (epsilon, delta)-local differential privacy.

    For any two rows, the reports have nearly the same distribution. The row is scaled down to norm
    `clip_norm`, so two rows are up to ``2 * clip_norm`` apart. (A guarantee for rows at distance 1
    only is metric privacy, which is weaker.)

    The noise of one report is about ``8 clip_norm / epsilon`` in *each* value, so no single row can
    be recovered. Directions that many rows have in common can: `LocalAggregator.components_` needs
    about ``5 n (noise_scale**2 / lambda_k)**2`` reports for n features, lambda_k the mean square of
    the rows along the weakest component.

    Parameters
    ----------
    row : array-like or sparse matrix of shape (n_features,) or (1, n_features)
        The private row.
    clip_norm : float
        Bound on its norm, the same for everybody.
    epsilon, delta : float
        Budget of the report.
    sketch_size, sketch_seed : int or None, default=None
        Report this many values of a public sketch instead of the row (a shorter message, more
        noise: the exact norm of the sketch counts).
    random_state : None or seed, default=None
        For tests: a seeded report is not private.

    Returns
    -------
    report : RandomizedRow

    Examples
    --------
    >>> from skdp.decomposition import LocalAggregator, randomize_row
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> rows = np.outer(rng.choice([-1.0, 1.0], 500), [0.8, 0.6, 0.0])
    >>> reports = [randomize_row(x, clip_norm=1.0, epsilon=8.0, delta=1e-6) for x in rows]
    >>> model = LocalAggregator(1).add(reports)
    >>> bool(abs(model.components_[0] @ [0.8, 0.6, 0.0]) > 0.9)
    True
    """
    reporter = _Reporter(
        epsilon=epsilon, delta=delta, clip_norm=clip_norm, sketch_size=sketch_size,
        sketch_seed=sketch_seed, random_state=random_state,
    )  # fmt: skip
    if getattr(row, "ndim", 1) != 2:
        row = row.reshape(1, -1) if sp.issparse(row) else np.atleast_2d(np.asanyarray(row))
    reporter.fit(row)
    values, noise_scale = reporter.answer_
    return RandomizedRow(values[0], noise_scale, sketch_seed, reporter.privacy_spent_)


class LocalAggregator:
    """Collects local reports. Its computations cost no budget, because the reports are public.

    Parameters
    ----------
    n_components : int
        Dimension.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Leading eigenvectors of ``Y'Y - m noise_scale^2 I``, debiased for the noise. Reports of a
        sketch give directions of the sketch.
    explained_variance_ : ndarray of shape (n_components,)
        Mean squares of the rows along them.
    left_singular_vectors_ : ndarray of shape (n_reports, n_components)
        Leading left singular vectors of the reports.
    privacy_spent_ : PrivacySpent
        The receipt that covers every report; it holds for each row whose person sent one report.
    """

    def __init__(self, n_components: int) -> None:
        self.n_components = check_count("n_components", n_components, 1)
        self._reports = []

    def add(self, reports: Any) -> Self:
        """Add reports of one noise scale and one sketch.

        Parameters
        ----------
        reports : RandomizedRow or iterable of RandomizedRow

        Returns
        -------
        self : LocalAggregator
        """
        reports = [reports] if isinstance(reports, RandomizedRow) else list(reports)
        if not all(isinstance(report, RandomizedRow) for report in reports):
            raise TypeError("reports are what randomize_row or LocalRowRandomizer.report returns.")
        known = [*self._reports[:1], *reports]
        for report in known[1:]:
            kind = (report.values.shape, report.noise_scale, report.sketch_seed)
            if kind != (known[0].values.shape, known[0].noise_scale, known[0].sketch_seed):
                raise ValueError("reports of different noise, sketch or length cannot be mixed.")
        self._reports += reports
        return self

    def _added(self):
        if not self._reports:
            raise ValueError("no report was added.")
        return self._reports

    def _matrix(self):
        return np.array([report.values for report in self._added()])

    def _pairs(self):
        Y, scale = self._matrix(), self._reports[0].noise_scale
        # The noise of the reports is taken off the expectation of Y'Y.
        values, vectors = np.linalg.eigh(Y.T @ Y - len(Y) * scale**2 * np.eye(Y.shape[1]))
        first = slice(None, -self.n_components - 1, -1)
        return np.maximum(values[first], 0.0), vectors[:, first]

    @property
    def components_(self) -> Any:
        """Leading directions of the rows."""
        return components_of(self._pairs()[1])

    @property
    def explained_variance_(self) -> Any:
        """Mean squares of the rows along the components."""
        return self._pairs()[0] / len(self._reports)

    @property
    def privacy_spent_(self) -> Any:
        """The receipt of the report with the largest privacy loss."""
        receipts = [report.privacy_spent for report in self._added()]
        most = max(receipts, key=lambda spent: (spent.mu, spent.epsilon))
        return replace(most, seeded=any(spent.seeded for spent in receipts))

    @property
    def left_singular_vectors_(self) -> Any:
        """Leading left singular vectors of the reports."""
        return np.linalg.svd(self._matrix(), full_matrices=False)[0][:, : self.n_components]

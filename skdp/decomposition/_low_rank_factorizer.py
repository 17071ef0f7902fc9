"""Low-rank factorisation of a private matrix from linear sketches."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp import _inputs
from skdp._validation import Seed, check_int, check_option, check_rank, check_shape
from skdp.base import BaseDPEstimator, as_input_dtype, atomic
from skdp.data.blocks import is_paths
from skdp.decomposition import _factorizer_state as states
from skdp.decomposition._base import LinearTransformMixin, found_of, warn_of_verdict
from skdp.decomposition._factorizer_streams import FactorizerStreams
from skdp.decomposition._planning import FactorizerPlans
from skdp.privacy.streams.sketches import SketchSource, grant_sketches
from skdp.queries.sketches import SketchUnit, Whole
from skdp.units import NORM, offered

_METHODS = ("auto", "two_sketch", "three_sketch", "dense")
_SKETCHES = ("gaussian", "srht", "sparse", "isometry")


class DPLowRankFactorizer(
    FactorizerPlans, FactorizerStreams, LinearTransformMixin, BaseDPEstimator
):
    """Low-rank factorisation A ~ U diag(s) V' with (epsilon, delta)-differential privacy.

    `left_singular_vectors_`, `singular_values_` and `components_` are
    (`epsilon`, `delta`)-differentially private
    for one privacy unit, whatever the matrix is; its shape is public. The fit reads A once, through
    noisy linear sketches, so A may arrive as a stream of updates or lie on several servers.
    Not covered: ``transform`` of private rows.

    Parameters
    ----------
    n_components : int, default=2
        Rank of the factorisation.
    epsilon : float, default=1.0
        Budget of one fit, or of one stream; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of units. A `fit` with
        ``method="dense"`` and the entry unit has Laplace noise, spends no delta and accepts 0.
    adjacency : {"add_remove", "zero_out", "replace"}, default="add_remove"
        All units except the row have "add_remove". The entry and the row have "replace". The row
        has "zero_out" (a row against zeros) instead of "add_remove", because the number of rows is
        public here.
    privacy_unit : {"frobenius", "rank_one", "row", "entry"}, default="frobenius"
        What is protected. "frobenius" (and "rank_one"): any change of A (of rank one) with a
        Frobenius norm of at most `unit_bound`. In a stream, the absolute values of one unit's
        updates sum to at most `unit_bound`. You ensure both; the code cannot check them. "row": one
        row, scaled down to norm `unit_bound`. "entry": one entry, clipped to the bounds. In a
        stream, the absolute values of its updates sum to at most the larger bound. With "replace"
        that holds for the updates before and after the change, and the noise is twice as large.
    unit_bound : (low, high), float or None, default=None
        The bound of the unit. "entry": what an entry is clipped to; None is (0, 1). "frobenius" and
        "rank_one": the norm of the largest change; "row": the largest norm of a row; None is 1.
    method : {"auto", "two_sketch", "three_sketch", "dense"}, default="auto"
        What is released with noise: sketches of rows and of columns, the same and a third sketch of
        both, or A itself ("dense"). With the row unit, and for entries of one sign, each also
        releases the sum of the rows. "auto" takes "dense", which has less error, up to 20 million
        entries.
    sketch : {"gaussian", "srht", "sparse", "isometry"}, default="gaussian"
        Kind of sketch. "sparse" makes updates fast.
    sensitivity_mode : {"random", "oblivious", "worst_case"}, default="random"
        "random": a secret Gaussian sketch counts as noise. "worst_case": noise for the exact norms
        of the sketch; the data may then depend on the sketch (streams, servers, known seeds).
        "oblivious": as "random", and you declare that the data do not depend on the sketch in any
        way. If that is wrong, the true epsilon can be 3 to 10 for a stated epsilon of 1.
    sketch_size : int, (int, int) or None, default=None
        Number of columns of the row sketch, and of rows of the column sketch (an int is the first;
        the second is then twice that). None is ``max(4 k, 32)`` for k components, or twice that for
        a `fit` whose sketches take at most 190 MB.
    matrix_shape : tuple of int or None, default=None
        Public shape of a matrix that arrives by `update`, `update_matrix` or `partial_fit`.
    max_releases : int, default=1
        Number of releases of a stream. Above 1, their noise is correlated over time. `unit_bound`
        bounds all updates of a unit together, those of all steps, as `privacy_unit` says.
    mechanism : {"auto", "sqrt", "tree"}, default="auto"
        How the noise of many releases is correlated. "sqrt" has less noise and stores the exact
        sketches of every step; "tree" stores about log2(`max_releases`). "auto" takes "sqrt" if
        `window` is None and each sketch needs less than 190 MB.
    window : int or None, default=None
        Each release then describes the last `window` steps, and not the whole matrix ("tree").
    random_state : int, Generator, RandomState or None, default=None
        None draws noise and sketch from the operating system. With anything else both can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        No effect.

    Attributes
    ----------
    left_singular_vectors_ : ndarray of shape (n_samples, n_components)
        Left singular vectors.
    singular_values_ : ndarray of shape (n_components,)
        Released singular values; 0 below the noise level.
    components_ : ndarray of shape (n_components, n_features)
        Right singular vectors. The sign of each depends on that vector alone.
    rank_ : int
        Number of components above the noise level.
    method_ : str
        The method that was used.
    sketch_size_, core_size_ : int
        Sizes of the sketches (of A itself for "dense").
    state_bytes_ : int
        Memory of the noisy sketches, for any number of updates; with many releases, of the whole
        state.
    n_stream_releases_ : int
        Number of releases so far, if `max_releases` is above 1.
    server_privacy_spent_ : tuple of dict
        After `release`: what each server spent.
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
    DPTruncatedSVD : Several passes over a matrix in memory.

    References
    ----------
    .. [1] Upadhyay, "The price of privacy for low-rank factorization", NeurIPS 2018.
    .. [2] Hardt, Roth, "Beating randomized response on incoherent matrices", STOC 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPLowRankFactorizer
    >>> rng = np.random.default_rng(0)
    >>> A = 50 * rng.standard_normal((300, 2)) @ rng.standard_normal((2, 200))
    >>> model = DPLowRankFactorizer(2, epsilon=1.0).fit(A)
    >>> approximation = (model.left_singular_vectors_ * model.singular_values_) @ model.components_
    >>> bool(np.linalg.norm(A - approximation) < 0.05 * np.linalg.norm(A))
    True
    """

    _privacy_units = offered("frobenius", "rank_one", "row", "entry") | {
        "row": ("zero_out", "replace")
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "frobenius",
        unit_bound: Any = None,
        method: str = "auto",
        sketch: str = "gaussian",
        sensitivity_mode: str = "random",
        sketch_size: int | tuple[int, int] | None = None,
        matrix_shape: tuple[int, int] | None = None,
        max_releases: int = 1,
        mechanism: str = "auto",
        window: int | None = None,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.privacy_unit = privacy_unit
        self.unit_bound = unit_bound
        self.adjacency = adjacency
        self.method = method
        self.sketch = sketch
        self.sensitivity_mode = sensitivity_mode
        self.sketch_size = sketch_size
        self.matrix_shape = matrix_shape
        self.max_releases = max_releases
        self.mechanism = mechanism
        self.window = window
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any = None) -> Self:
        """Factor X with one release; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or list of paths
            The private matrix; a memory map and npy or npz files are read block by block.
        y : Ignored
            Not used.

        Returns
        -------
        self : DPLowRankFactorizer
            The fitted estimator.
        """
        self._check_fit()
        self._checked_session()  # what is wrong with the budget is said before the shape
        X = self._matrix(X)
        self._check_matrix(shape_of(X))
        whole = states.sizes(self, shape_of(X), stream=False)[0] == "dense"
        session = self._open_session(pure=whole and self._offers_pure_dp())
        self._warn_of_delta(*_inputs.public_units(self, shape_of(X), session))
        attributes = self._fit_session(session, X)
        warn_of_verdict(self, *found_of(attributes["singular_values_"]))
        return self._close_session(session, as_input_dtype(attributes, X.dtype))

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        layout = states.make_layout(self, shape_of(X), self._unit(stream=False))
        maps = states.draw_maps(layout, self.sketch, SketchSource.of(session))
        bounds = [layout.unit.bound(sketch, random=layout.random) for sketch in maps]
        shares = layout.shares(session.budget)
        if layout.method == "dense":
            paid = [session.grant(*each) for each in zip(bounds, shares, strict=True)]
        else:
            paid = grant_sketches(session, bounds, shares)
        query = Whole(X, layout.unit)
        answers = [g.open(query.answer(s)) for g, s in zip(paid, maps, strict=True)]
        return states.factored(layout, answers, [maps], states.random_start(session, layout))

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Factor X; return ``left_singular_vectors_ * singular_values_``, which may be published.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The private matrix.
        y : Ignored
            Not used.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Released coordinates of the rows.
        """
        self.fit(X)
        return self.left_singular_vectors_ * self.singular_values_

    def reconstruct(self, rows: Any = None, columns: Any = None) -> Any:
        """Return entries of the released approximation; it may be published.

        Parameters
        ----------
        rows, columns : array-like of int or None, default=None
            Indices of rows and columns, as pairs of equal length; None takes all of them.

        Returns
        -------
        values : ndarray
            Of the shape of `rows` where both are given, else a matrix.
        """
        check_is_fitted(self, "components_")
        U, V = self.left_singular_vectors_ * self.singular_values_, self.components_.T
        if rows is not None and columns is not None:
            return np.einsum("...k,...k->...", U[np.asarray(rows)], V[np.asarray(columns)])
        return U[slice(None) if rows is None else rows] @ (
            V[slice(None) if columns is None else columns].T
        )

    # -- parameters -------------------------------------------------------------------------------

    _offers_pure_dp, _budget_kinds = states.offers_pure_dp, states.budget_kinds

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_option(self, "privacy_unit", tuple(self._privacy_units))
        if self._protects.by_rows and self.adjacency == "add_remove":
            raise ValueError(
                "privacy_unit='row' needs adjacency='zero_out' (a row against zeros) or 'replace': "
                "left_singular_vectors_ shows how many rows there are. Got 'add_remove'."
            )
        _inputs.check_unit_bound(self)
        check_option(self, "method", _METHODS)
        check_option(self, "sketch", _SKETCHES)
        check_option(self, "sensitivity_mode", ("random", "oblivious", "worst_case"))
        if np.ndim(self.sketch_size):
            check_shape(self, "sketch_size")
        else:
            check_int(self, "sketch_size", 1, none=True)
        self._check_releases()
        if self.matrix_shape is not None:
            self._check_matrix(check_shape(self, "matrix_shape"))

    def _check_releases(self):
        horizon = check_int(self, "max_releases", 1)
        mechanism = check_option(self, "mechanism", ("auto", "sqrt", "tree"))
        window = check_int(self, "window", 1, none=True)
        if window is not None and (window > horizon or mechanism == "sqrt"):
            raise ValueError(
                "'window' must be at most 'max_releases', and needs mechanism='tree' or 'auto'. "
                f"Got window={window!r}, max_releases={horizon!r}, mechanism={mechanism!r}."
            )

        if horizon > 1 and self._server is not None:
            raise ValueError(
                "a factorizer of 'for_server' has a single release, since others share its "
                f"sketches; use max_releases=1. Got max_releases={horizon!r}."
            )

    def _check_fit(self):
        self._check_parameters()
        if self._state.running is not None or self._running_stream() is not None:
            raise ValueError("a stream is running: release it, or fit a clone.")
        if self._server is not None:
            raise ValueError(
                "a factorizer of 'for_server' takes updates, not fit: its sketches are shared with "
                "other servers. Use update_matrix, or fit a clone."
            )

    def _matrix(self, X):
        """Return the checked matrix, or its files."""
        if _inputs.is_memory_map(X) or is_paths(X):
            source = _inputs.check_rows(self, X, accept_sparse=True)
            return source if is_paths(X) else X
        return _inputs.check_matrix(self, X, states.OTHER_BLOCKS, accept_sparse=("csr", "csc"))

    def _check_matrix(self, shape):
        if self.matrix_shape is not None and tuple(shape) != tuple(self.matrix_shape):
            raise ValueError(f"X must have the shape {self.matrix_shape}. Got {tuple(shape)}.")
        check_rank(self, *shape)

    def _unit(self, *, stream):
        longest = self.unit_bound if self._protects.by_rows else None
        longest = float(NORM.default if longest is None else longest)
        return _inputs.matrix_unit(self, SketchUnit, stream=stream, clip_norm=longest)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # fit_transform returns the released rows, not projected ones
        return tags


def shape_of(X):
    """Return the shape of a matrix or of its files, which is public."""
    return X.shape if hasattr(X, "shape") else (X.n_rows(), X.n_features)

"""The algorithm as published: Jain et al. 2021, algorithms 1 to 3, personalised models."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdp._inputs import check_numbers, checked, labels_of, name_of_label
from skdp._limits import FloatArray
from skdp._validation import Seed, check_int, check_option, check_rank, check_real
from skdp.base import BaseDPEstimator, atomic
from skdp.data.factorisations import of_public, row_squares, solve
from skdp.data.units import Batch, UserRows
from skdp.decomposition._base import LinearTransformMixin
from skdp.papers._base import step_share
from skdp.queries.users import UserQuery
from skdp.solvers.linalg import components_of, orthonormal
from skdp.solvers.local_fits import RidgePath, moments, transposed
from skdp.solvers.personalization import View


class PersonalizedRegression(LinearTransformMixin, BaseDPEstimator):
    """The shared subspace of personal models by Jain et al. (2021), algorithms 1 to 3, as printed.

    `components_` satisfy (`epsilon`, `delta`)-differential privacy for all rows of one user. For
    comparisons: `DPPersonalizedRegressor` finds the subspace with far fewer users.

    Parameters
    ----------
    n_components : int, default=2
        Dimension k of the subspace.
    epsilon : float, default=1.0
        Budget of one fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails.
    adjacency : {"replace", "add_remove"}, default="replace"
        Another user, as in the paper's proofs, or a user more or less.
    n_rounds : int, default=0
        Rounds T of algorithm 1, each with a share of the users; 0 stops after algorithm 3.
    max_rows : int, default=16
        Public number m: at most so many rows of a user count. The paper assumes it.
    target_bound : float, default=1.0
        zeta: targets are clipped to plus and minus this.
    product_bound : float, default=1.0
        eta: v x' of a row is scaled down to this norm (algorithm 2).
    start : {"pairs", "exponential"}, default="pairs"
        Algorithm 3, or the exponential mechanism over public candidates (algorithm 4, which takes
        all of epsilon and no delta; without rounds). The published score has no bounded
        sensitivity. Here a user's score of a candidate is the fraction of squares that it explains,
        in [0, 1].
    candidates : array of shape (n, n_features, n_components) or None, default=None
        Public candidates of "exponential", which needs them; None is a grid of lines, for one
        component and at most four features.
    calibration : {"exact", "printed"}, default="exact"
        Noise multiplier: that of exact accounting, or the paper's sqrt(8 log(1/delta))/epsilon
        (sqrt(16 log(1/delta))/epsilon if rounds follow). The receipt of the second shows what it
        really spends.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system; anything else is not private.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal basis of the subspace.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    Notes
    -----
    Sensitivities are the paper's: m zeta^2 for algorithm 3, m eta^2/2 and m eta zeta/2 for
    algorithm 2 (half of them for "add_remove"). They hold for all data, because what a user adds is
    clipped to the norm that the paper derives. Differences from the paper: a user's block of
    algorithm 1 follows from its label and a random number, not from its position (a user who leaves
    would move others); a round is charged as if all users were in it, which is sqrt(T) more noise
    than one block needs; the noisy normal equations are solved by least squares, as they need not
    be definite. Rows of a user count in an order of their own.

    References
    ----------
    .. [1] Jain, Rush, Smith, Song, Thakurta, "Differentially private model personalization",
       NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.papers import PersonalizedRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20000 * 4, 3))
    >>> groups = np.repeat(np.arange(20000), 4)
    >>> y = X[:, 0] * rng.standard_normal(20000)[groups]
    >>> model = PersonalizedRegression(1, epsilon=4.0, max_rows=4).fit(X, y, groups)
    >>> bool(abs(model.components_[0, 0]) > 0.95)
    True
    """

    _privacy_units = {"group": ("replace", "add_remove")}
    privacy_unit = "group"
    __metadata_request__fit = {"groups": True}

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "replace",
        n_rounds: int = 0,
        max_rows: int = 16,
        target_bound: float = 1.0,
        product_bound: float = 1.0,
        start: str = "pairs",
        candidates: ArrayLike | None = None,
        calibration: str = "exact",
        random_state: Seed = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.n_rounds = n_rounds
        self.max_rows = max_rows
        self.target_bound = target_bound
        self.product_bound = product_bound
        self.start = start
        self.candidates = candidates
        self.calibration = calibration
        self.random_state = random_state

    @atomic
    def fit(self, X: Any, y: Any, groups: Any) -> Self:
        """Run the algorithms; spends (`epsilon`, `delta`), or less with printed constants.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The private rows.
        y : array-like of shape (n_samples,)
            The private targets.
        groups : array-like of shape (n_samples,)
            The user of each row.

        Returns
        -------
        self : PersonalizedRegression
            The fitted estimator.
        """
        self._check_parameters()
        self._checked_session()  # what is wrong with the budget is said before the data
        X, y = checked(self, X, y, y_numeric=True)
        check_rank(self, math.inf, X.shape[1])
        labels = labels_of(groups, len(X))
        session = self._open_session(pure=self.start == "exponential")
        users, codes = np.unique(labels, return_inverse=True)
        block = _blocks(users, self.n_rounds, session.random_number())
        targets = np.column_stack([check_numbers(y).astype(np.float64, copy=False), block[codes]])
        rows = UserRows(X, targets, codes, False)
        components = self._fit_session(session, UserQuery(rows, adjacency=self.adjacency))
        return self._close_session(session, {"components_": components})

    def _fit_session(self, session, query):
        """Make all releases: the start, then one round after the other."""
        ask, d, k = session.ask(query), query.n_features, self.n_components
        if self.start == "exponential":
            view = View(None, False, "squared")
            candidates = self._candidates_of(d)
            scores = candidate_scores(view, candidates)
            index = ask.scores("subspace", scores, len(candidates), share=1.0)
            return components_of(orthonormal(candidates[index]))
        start, each = self._shares(session)
        zeta, eta, m = float(self.target_bound), float(self.product_bound), self.max_rows
        local = partial(_pairs, m=m, zeta=zeta)
        answer = ask.sums("pairs", local, (((d * (d + 1) // 2,), m // 2 * zeta**2),), share=start)
        U = of_public(np.linalg.eigh, _mirrored(answer.value, d))[1][:, -k:]
        q, size = m // 4, d * k
        for index in range(self.n_rounds):
            equations = _Equations(U, index, q, zeta, eta)
            matrix = (((size * (size + 1) // 2,), q * eta**2),)
            A = ask.sums("matrix", equations.matrix, matrix, share=each).value
            b = ask.sums("vector", equations.vector, (((size,), q * eta * zeta),), share=each).value
            Z = of_public(np.linalg.lstsq, _mirrored(A, size), b, rcond=None)[0]
            U = of_public(np.linalg.qr, Z.reshape(d, k))[0]
        return components_of(U)

    def _shares(self, session):
        """Return the share of the start and of each release of a round, fixed before the first.

        If rounds follow, the start has half.
        """
        n = 2 * self.n_rounds
        if self.calibration == "exact" or session.budget.exact:
            return (1.0, 0.0) if not n else (0.5, 0.5 / n)
        multiplier = math.sqrt((16 if n else 8) * math.log(1 / self.delta)) / self.epsilon
        share = step_share(session, multiplier, n + 1)
        return share, share

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_int(self, "n_rounds", 0)
        check_int(self, "max_rows", 4 if self.n_rounds else 2)
        check_real(self, "target_bound", 0, 1e30)
        check_real(self, "product_bound", 0, 1e30)
        check_option(self, "calibration", ("exact", "printed"))
        check_option(self, "start", ("pairs", "exponential"))
        if self.start == "exponential" and self.n_rounds:
            raise ValueError(f"start='exponential' has no rounds. Got n_rounds={self.n_rounds!r}.")

    def _offers_pure_dp(self):
        return self.start == "exponential"

    def _candidates_of(self, d):
        """Return the public candidates of "exponential" as orthonormal columns."""
        if self.candidates is None and self.n_components == 1 and d <= 4:
            return line_net(d, 1000)
        found = np.asarray([] if self.candidates is None else self.candidates, np.float64)
        if found.shape[1:] != (d, self.n_components) or not len(found):
            raise ValueError(
                f"start='exponential' needs public 'candidates' of shape (n, {d}, "
                f"{self.n_components}). Got shape {found.shape}."
            )
        if not np.isfinite(found).all():
            raise ValueError("'candidates' must be finite.")
        return of_public(np.linalg.qr, found)[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = False  # rows of a user are multiplied in pairs
        tags.non_deterministic = True
        return tags


def _blocks(users: NDArray[Any], n_rounds: int, number: int) -> FloatArray:
    """Return the block of each user: a function of its label and a public number alone."""
    key = number.to_bytes(8, "little")
    names = map(name_of_label, users.tolist())  # whatever common type the labels have
    words = [hashlib.blake2b(name.encode(), digest_size=8, key=key).digest() for name in names]
    return np.array([int.from_bytes(w, "little") % max(1, n_rounds) for w in words], np.float64)


def _triangles(matrices: FloatArray) -> FloatArray:
    """Return the upper triangles of some matrices, flat."""
    i, j = np.triu_indices(matrices.shape[1])
    return matrices[:, i, j]


def _mirrored(triangle: FloatArray, n: int) -> FloatArray:
    """Return the symmetric matrix of an upper triangle, as the paper copies it."""
    M = np.zeros((n, n))
    M[np.triu_indices(n)] = triangle
    return M + np.triu(M, 1).T


def _targets(batch: Batch, zeta: float) -> FloatArray:
    return np.clip(batch.Y[:, :, 0], -zeta, zeta)


def _pairs(batch: Batch, m: int, zeta: float) -> FloatArray:
    """Algorithm 3: the sum over pairs of rows of (x/|x|)(x'/|x'|)' y y', upper triangle."""
    X, y = batch.X[:, :m], _targets(batch, zeta)[:, :m]
    norms = np.sqrt(row_squares(X))
    rows = X * (y / np.where(norms > 0, norms, 1.0))[:, :, None]
    pairs = X.shape[1] // 2
    first, second = rows[:, : 2 * pairs : 2], rows[:, 1 : 2 * pairs : 2]
    return _triangles(np.matmul(first.swapaxes(1, 2), second))


class _Equations(NamedTuple):
    """Algorithm 2 for one block of users: heads from a quarter of the rows, sums from the next."""

    U: FloatArray
    block: int
    q: int
    zeta: float
    eta: float

    def _rows(self, batch: Batch) -> tuple[FloatArray, FloatArray]:
        """Return vec(x v') of each row, scaled down to norm eta, and the clipped targets."""
        X = np.ldexp(batch.X, batch.x_exponent[:, None, None])
        y, q, k = _targets(batch, self.zeta), self.q, self.U.shape[1]
        seen = np.matmul(X[:, :q], self.U)
        G = np.matmul(seen.swapaxes(1, 2), seen) + 1e-6 * np.eye(k)
        heads = solve(G, np.matmul(seen.swapaxes(1, 2), y[:, :q, None]))[:, :, 0]
        rest, y = X[:, q : 2 * q], y[:, q : 2 * q]
        W = rest[:, :, :, None] * heads[:, None, None, :]
        W = W.reshape(*rest.shape[:2], self.U.size)
        norms = np.sqrt(row_squares(W))
        W = W * np.minimum(1, self.eta / np.where(norms > 0, norms, 1.0))[:, :, None]
        mine = batch.Y[:, 0, 1] == self.block
        return np.where(mine[:, None, None], W, 0.0), y

    def matrix(self, batch: Batch) -> FloatArray:
        """Return the sum of W W', upper triangle."""
        W, _ = self._rows(batch)
        return _triangles(np.matmul(W.swapaxes(1, 2), W))

    def vector(self, batch: Batch) -> FloatArray:
        """Return the sum of y W."""
        W, y = self._rows(batch)
        return np.matmul(y[:, None], W)[:, 0]


# Algorithm 4: the exponential mechanism over public subspaces. The score of a candidate is the sum
# over users of the share of their squares that it explains, a number in [0, 1] for each.


@cache
def line_net(d: int, n: int) -> FloatArray:
    """A public net of about n lines in d <= 4 dimensions, as (n, d, 1): fixed for all time."""
    points = np.random.default_rng(0).standard_normal((n, d))  # a fixed set, not noise
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    for _ in range(20):  # move close lines apart, for a more even net
        closeness = points @ points.T
        np.fill_diagonal(closeness, 0.0)
        weights = np.sign(closeness) * np.maximum(np.abs(closeness) - 0.8, 0.0) ** 3
        points -= (
            weights @ points / np.maximum(np.abs(weights).sum(axis=1, keepdims=True), 1e-9) / 9
        )
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    points.flags.writeable = False
    return points[:, :, None]


def candidate_scores(view: View, candidates: FloatArray) -> Callable[[Any], FloatArray]:
    """Return the share of its squares that each user explains in each candidate subspace."""

    def scores(batch: Any) -> FloatArray:
        viewed = view(batch)
        X, Y = viewed.X, view.linear_targets(viewed.Y)
        total = (Y * Y).reshape(len(Y), -1).sum(axis=1)[:, None]
        if candidates.shape[2] == 1:
            Z = np.matmul(X, candidates[:, :, 0].T)
            products, squares = moments(Z, Y), (Z * Z).sum(axis=1)
            explained = (products * products).sum(axis=2) / np.where(squares > 0, squares, np.inf)
        else:
            explained = np.stack([_explained(np.matmul(X, U), Y) for U in candidates], axis=1)
        return np.asarray(explained / np.where(total > 0, total, np.inf))

    return scores


def _explained(Z: FloatArray, Y: FloatArray) -> FloatArray:
    path = RidgePath.of(Z)
    fitted = np.matmul(transposed(path.basis.P), Y) * (path.s > 1e-12 * path.s[:, -1:])[:, :, None]
    return np.asarray((fitted * fitted).reshape(len(Y), -1).sum(axis=1))

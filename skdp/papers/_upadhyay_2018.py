"""The algorithm as published: Upadhyay 2018, figures 2 and 4, low-rank factors."""

from __future__ import annotations

import numpy as np

from skdp._inputs import check_matrix
from skdp._validation import Seed, check_int, check_option, check_rank, check_real, check_size
from skdp.decomposition._base import LinearTransformMixin
from skdp.decomposition._factorizer_state import Layout, draw_maps
from skdp.papers._base import Published
from skdp.privacy.streams.sketches import SketchSource, grant_sketches
from skdp.queries.sketches import SketchUnit, Whole
from skdp.solvers.linalg import with_signs


class SketchFactorizer(LinearTransformMixin, Published):
    """Low-rank factorisation by two or three sketches (Upadhyay 2018), solved as printed.

    `left_singular_vectors_`, `singular_values_` and `components_` are (`epsilon`,
    `delta`)-differentially private for any change of X of Frobenius norm at most `sensitivity`, the
    caller's contract. For comparisons: `DPLowRankFactorizer` solves the same sketches with less
    error, and remains stable where they are narrow.

    Parameters
    ----------
    n_components : int, default=2
        Rank k.
    epsilon : float, default=1.0
        Budget of one fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails.
    adjacency : {"add_remove"}, default="add_remove"
        The only one.
    sensitivity : float, default=1.0
        Bound on the Frobenius norm of the change.
    method : {"two_sketch", "three_sketch"}, default="two_sketch"
        Figure 4 or figure 2 of the paper.
    alpha : float, default=0.25
        Approximation: k/alpha columns of the row sketch and k/alpha^2 rows of the others, cut to
        the shape.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise and sketches from the operating system; anything else is not private.

    Attributes
    ----------
    left_singular_vectors_ : ndarray of shape (n_samples, n_components)
        Left singular vectors.
    singular_values_ : ndarray of shape (n_components,)
        Released singular values.
    components_ : ndarray of shape (n_components, n_features)
        Right singular vectors.
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
    Noise is that of exact accounting, equal on each sketch. The constants of the paper are not
    offered: those of figure 4, and of the second and third sketch of figure 2, protect less than
    the paper says (two releases at a nominal epsilon of 1 have a true one of 1.67). The padding of
    figure 2 is equivalent to additive noise and is added as such, 155 to 355 times smaller than
    published.

    References
    ----------
    .. [1] Upadhyay, "The price of privacy for low-rank factorization", NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.papers import SketchFactorizer
    >>> rng = np.random.default_rng(0)
    >>> A = 50 * rng.standard_normal((300, 2)) @ rng.standard_normal((2, 200))
    >>> model = SketchFactorizer(2).fit(A)
    >>> approximation = (model.left_singular_vectors_ * model.singular_values_) @ model.components_
    >>> bool(np.linalg.norm(A - approximation) < 0.1 * np.linalg.norm(A))
    True
    """

    _privacy_units = {"frobenius": ("add_remove",)}
    privacy_unit = "frobenius"
    _splits_budget = False  # sketches are drawn once

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        sensitivity: float = 1.0,
        method: str = "two_sketch",
        alpha: float = 0.25,
        random_state: Seed = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.sensitivity = sensitivity
        self.method = method
        self.alpha = alpha
        self.random_state = random_state

    def _checked_matrix(self, X):
        X = check_matrix(self, X, "in DPLowRankFactorizer", accept_sparse=("csr", "csc"))
        check_rank(self, *X.shape)
        return X

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        (m, n), k = X.shape, self.n_components
        t, v = int(k / self.alpha), int(k / self.alpha**2)
        unit = SketchUnit("frobenius", sensitivity=float(self.sensitivity))
        layout = Layout(self.method, (m, n), min(t, n), min(v, m), unit, True, k)
        maps = draw_maps(layout, "gaussian", SketchSource.of(session))
        bounds = [unit.bound(sketch, random=True) for sketch in maps]
        grants = grant_sketches(session, bounds, [1 / len(bounds)] * len(bounds))
        query = Whole(X, unit)
        values = [g.open(query.answer(s)).value for g, s in zip(grants, maps, strict=True)]
        T = maps[-1].right.real() if self.method == "three_sketch" else None
        left, sizes, right = published_factors(values, maps[-1].left.real(), T, k)
        left, components = with_signs(left, right.T)
        names = "left_singular_vectors_", "singular_values_", "components_"
        return dict(zip(names, (left, sizes, components), strict=True))

    def _budget_kinds(self):
        return ("sketch",)

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_size(self, "sensitivity")
        check_option(self, "method", ("two_sketch", "three_sketch"))
        check_real(self, "alpha", 0, 1, closed="right")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def published_factors(sketches, S, T, k):
    """Solve for A ~ U X V' as printed: the least squares of the core alone, by pseudo-inverses.

    Figure 4: X = (S'U)^+ [P Z]_k with V = I. Figure 2: X = (S'U)^+ [P Z Q]_k (V'T)^+, where P and Q
    project on the ranges of S'U and V'T.
    """
    U, V = np.linalg.qr(sketches[0])[0], np.linalg.qr(sketches[1].T)[0]
    before = S.T @ U
    P = np.linalg.svd(before, full_matrices=False)[0]
    if T is None:
        X = np.linalg.pinv(before, 1e-12) @ P @ _truncated(P.T @ sketches[1], k)
    else:
        after = V.T @ T
        Q = np.linalg.svd(after, full_matrices=False)[2]
        core = P @ _truncated(P.T @ sketches[2] @ Q.T, k) @ Q
        X = np.linalg.pinv(before, 1e-12) @ core @ np.linalg.pinv(after, 1e-12) @ V.T
    left, values, right = np.linalg.svd(X, full_matrices=False)
    return U @ left[:, :k], values[:k], right[:k]


def _truncated(M, k):
    left, values, right = np.linalg.svd(M, full_matrices=False)
    return (left[:, :k] * values[:k]) @ right[:k]

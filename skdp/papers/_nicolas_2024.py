"""The algorithm as published: Nicolas et al. 2024, algorithm 1, the power method."""

from __future__ import annotations

import math

from skdp._inputs import check_matrix
from skdp._validation import Seed, check_bounds, check_int, check_option, check_rank
from skdp.decomposition._base import LinearTransformMixin
from skdp.papers._base import RULES, Published, PublishedQuery, check_square, step_share
from skdp.queries.entries import EntryQuery, MatrixUnit
from skdp.queries.interactions import InteractionQuery
from skdp.solvers.linalg import components_of, orthonormal
from skdp.units import DEGREE


class PowerMethod(LinearTransformMixin, Published):
    """The power method of Nicolas et al. (2024), algorithm 1, and its predecessors, as printed.

    `components_` satisfy (`epsilon`, `delta`)-differential privacy for one interaction of a binary
    matrix or one edge of a graph. For comparisons: `DPTruncatedSVD` needs less noise.

    Parameters
    ----------
    n_components : int, default=2
        Columns p of the iterate; all of them are released.
    epsilon : float, default=1.0
        Budget of one fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails.
    adjacency : {"add_remove"}, default="add_remove"
        One interaction or edge more or less.
    privacy_unit : {"interaction", "edge"}, default="interaction"
        "interaction": A = R'R, the rows of R over the roots of their degrees. "edge": A is the
        square X itself, its upper triangle counts.
    sensitivity : {"rows", "prior", "width", "independent"}, default="rows"
        What noise is proportional to: the largest row of the iterate (the paper), sqrt(p) times its
        largest entry (Hardt, Price 2014; Balcan et al. 2016), sqrt(p) (FedPower), or a constant.
        Each at least what is needed.
    n_parties : int, default=1
        Parties of which each adds all of the noise, as the decentralised baselines of the paper do:
        sqrt(n_parties) times the noise. 1 is the central method, and the decentralised one of the
        paper, whose parties share the noise.
    calibration : {"exact", "printed"}, default="exact"
        Noise multiplier of L steps: sqrt(L)/mu, or sqrt(4 L log(1/delta))/epsilon. The receipt of
        the second shows what it really spends.
    n_iter : int, default=3
        Steps L.
    entry_bounds : tuple of float, default=(0.0, 1.0)
        Edges are clipped to them.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system; anything else is not private.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The last iterate.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    References
    ----------
    .. [1] Nicolas, Sabater, Maouche, Ben Mokhtar, Coates, "Differentially private and decentralized
       randomized power method", 2024.
    .. [2] Hardt, Price, "The noisy power method", NIPS 2014.

    Examples
    --------
    >>> from skdp.datasets import make_interactions
    >>> from skdp.papers import PowerMethod
    >>> R = make_interactions(2000, 100, 30_000, 5, random_state=0)
    >>> model = PowerMethod(5, epsilon=2.0, calibration="printed").fit(R)
    >>> model.components_.shape, model.privacy_spent_.epsilon < 2.0  # it wastes some
    ((5, 100), True)
    """

    _privacy_units = {"interaction": ("add_remove",), "edge": ("add_remove",)}

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "interaction",
        sensitivity: str = "rows",
        n_parties: int = 1,
        calibration: str = "exact",
        n_iter: int = 3,
        entry_bounds: tuple[float, float] = (0.0, 1.0),
        random_state: Seed = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.sensitivity = sensitivity
        self.n_parties = n_parties
        self.calibration = calibration
        self.n_iter = n_iter
        self.entry_bounds = entry_bounds
        self.random_state = random_state

    def _checked_matrix(self, X):
        options = {"accept_sparse": ("csr", "csc"), "ensure_min_features": 2}
        X = check_matrix(self, X, "for the row unit of DPTruncatedSVD", **options)
        check_rank(self, math.inf, X.shape[1])
        if self._protects.symmetric:
            check_square(self, X.shape)
        return X

    def _fit_session(self, session, X):
        """Release the noisy products; X itself is read by the session alone."""
        n, steps = X.shape[1], self.n_iter
        ask = session.ask(PublishedQuery(self._query(X), self.sensitivity, self.n_parties))
        share = 1 / steps
        if self.calibration == "printed" and not session.budget.exact:
            log = math.log(1 / self.delta)
            share = step_share(session, math.sqrt(4 * steps * log) / self.epsilon, steps)
        V = orthonormal(session.random_signs((n, self.n_components)))
        for _ in range(steps):
            V = orthonormal(ask.right(V, share=share).value)
        return {"components_": components_of(V)}

    def _query(self, X):
        if self._protects.bound is DEGREE:
            return InteractionQuery(X, degree_floor=1, adjacency=self.adjacency)
        return EntryQuery(X, MatrixUnit("edge", self.adjacency, *map(float, self.entry_bounds)))

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_int(self, "n_iter", 1)
        check_option(self, "privacy_unit", tuple(self._privacy_units))
        check_option(self, "sensitivity", RULES)
        check_int(self, "n_parties", 1)
        check_option(self, "calibration", ("exact", "printed"))
        check_bounds(self, "entry_bounds")

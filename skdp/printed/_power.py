"""Power methods as printed: Nicolas et al. 2024, algorithm 1; Hardt and Roth 2013, figures 2, 3."""

from __future__ import annotations

import math

import numpy as np

from skdp._inputs import check_matrix, checked
from skdp._types import Seed
from skdp._validation import check_bounds, check_int, check_option, check_real
from skdp.decomposition._base import LinearTransformMixin
from skdp.printed._base import Printed
from skdp.queries.entries import EntryQuery, EntryUnit
from skdp.queries.interactions import InteractionQuery
from skdp.queries.printed import RULES, PrintedQuery
from skdp.solvers.linalg import fix_signs, orthonormal

_VALUES = 0.1  # of what the steps spend, for the eigenvalues: the paper takes no account of them


def step_share(session, multiplier, n_steps):
    """Return the share of each of several steps whose noise is `multiplier` sensitivities.

    A share of mu squared that is fixed before the first step; more than there is, is refused.
    """
    share, needed = 1 / (multiplier * session.budget.mu) ** 2, math.sqrt(n_steps)
    if share * n_steps > 1 + 1e-9:
        raise ValueError(
            "calibration='printed' protects less than it says at this 'epsilon' and 'delta': its "
            f"noise multiplier {multiplier:.3g} is below {needed / session.budget.mu:.3g}. Use "
            "calibration='exact', or a smaller 'epsilon'."
        )
    return share


class PrintedPowerMethod(LinearTransformMixin, Printed):
    """The power method of Nicolas et al. (2024), algorithm 1, and its predecessors, as printed.

    `components_` satisfy (`epsilon`, `delta`)-differential privacy for one interaction of a binary
    matrix or one edge of a graph. To compare with: `DPTruncatedSVD` needs less noise.

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
        Names of the features, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt.
    ledger_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    References
    ----------
    .. [1] Nicolas, Sabater, Maouche, Ben Mokhtar, Coates, "Differentially private and decentralized
       randomized power method", 2024.
    .. [2] Hardt, Price, "The noisy power method", NIPS 2014.

    Examples
    --------
    >>> from skdp.datasets import make_interactions
    >>> from skdp.printed import PrintedPowerMethod
    >>> R = make_interactions(2000, 100, 30_000, 5, random_state=0)
    >>> model = PrintedPowerMethod(5, epsilon=2.0, calibration="printed").fit(R)
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
        return check_matrix(self, X, "for the row unit of DPTruncatedSVD", **options)

    def _fit_session(self, session, X):
        """Release the noisy products; X itself is read by the session alone."""
        n, steps = X.shape[1], self.n_iter
        ask = session.ask(PrintedQuery(self._query(X), self.sensitivity, self.n_parties))
        share = 1 / steps
        if self.calibration == "printed" and not session.budget.exact:
            log = math.log(1 / self.delta)
            share = step_share(session, math.sqrt(4 * steps * log) / self.epsilon, steps)
        V = orthonormal(session.random_signs((n, self.n_components)))
        for _ in range(steps):
            V = orthonormal(ask.right(V, share=share).value)
        return {"components_": fix_signs(np.ascontiguousarray(V.T))}

    def _query(self, X):
        if self.privacy_unit == "interaction":
            return InteractionQuery(X, degree_floor=1, adjacency=self.adjacency)
        return EntryQuery(X, EntryUnit("edge", self.adjacency, *map(float, self.entry_bounds)))

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_int(self, "n_iter", 1)
        check_option(self, "privacy_unit", tuple(self._privacy_units))
        check_option(self, "sensitivity", RULES)
        check_int(self, "n_parties", 1)
        check_option(self, "calibration", ("exact", "printed"))
        check_bounds(self, "entry_bounds")

    def _check_shape(self, shape):
        check_columns(self, shape[1])
        if self.privacy_unit == "edge":
            check_square(self, shape)


class PrintedDeflation(Printed):
    """Power iteration for a fixed coherence, and deflation (Hardt, Roth 2013, figures 2, 3).

    `components_` and `eigenvalues_` satisfy (`epsilon`, `delta`)-differential privacy for one edge
    of a graph. To compare with: `DPSpectralEmbedding` and `DPTruncatedSVD` need no bound on the
    coherence, never fail, and need less noise.

    Parameters
    ----------
    n_components : int, default=1
        Rank k: one run of the iteration for each.
    epsilon : float, default=1.0
        Budget of one fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails.
    adjacency : {"add_remove"}, default="add_remove"
        One edge more or less.
    coherence : float, default=30.0
        C: an iterate with a square above C/n makes the run fail. The paper asks for 16 mu log(n).
    n_iter : int, default=4
        Steps T of each run; `skdp.theory.power_steps` has the paper's.
    calibration : {"exact", "printed"}, default="exact"
        Noise multiplier of a step: that of exact accounting, or (2/epsilon') sqrt(4 T
        log(1/delta')) with epsilon' = epsilon/sqrt(4 k log(1/delta)) and delta' = delta/k (epsilon
        and delta themselves for k = 1). The receipt of the second shows what it really spends.
    entry_bounds : tuple of float, default=(0.0, 1.0)
        Edges are clipped to them.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system; anything else is not private.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_nodes)
        The vectors; zeros from the run on that failed.
    eigenvalues_ : ndarray of shape (n_components,)
        ||A_i v|| with noise, as printed: never negative but for the noise, whatever the sign of the
        eigenvalue.
    failed_ : bool
        Whether an iterate was beyond the coherence. What was left is spent all the same.
    n_features_in_ : int
        Number of nodes.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the nodes, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt.
    ledger_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    Notes
    -----
    Different from the print: the start is a unit vector; a pair of entries changes, which costs
    sqrt(2); the noise of the eigenvalues is Gaussian and paid for, by a tenth of what the steps
    spend (the print adds Laplace noise beside its budget); the sum of the rank-one terms is the
    output (the print gives the residual, which is private).

    References
    ----------
    .. [1] Hardt, Roth, "Beyond worst-case analysis in private singular vector computation", STOC
       2013.

    Examples
    --------
    >>> from skdp.datasets import make_block_graph
    >>> from skdp.printed import PrintedDeflation
    >>> A, _ = make_block_graph(200, 2, gap=60.0, mean_degree=80.0, random_state=0)
    >>> model = PrintedDeflation(1, epsilon=4.0, coherence=40.0).fit(A)
    >>> model.components_.shape, model.failed_
    ((1, 200), False)
    """

    _privacy_units = {"edge": ("add_remove",)}
    privacy_unit = "edge"

    def __init__(
        self,
        n_components: int = 1,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        coherence: float = 30.0,
        n_iter: int = 4,
        calibration: str = "exact",
        entry_bounds: tuple[float, float] = (0.0, 1.0),
        random_state: Seed = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.coherence = coherence
        self.n_iter = n_iter
        self.calibration = calibration
        self.entry_bounds = entry_bounds
        self.random_state = random_state

    def _checked_matrix(self, X):
        forms = ("csr", "csc", "coo")
        return checked(self, X, accept_sparse=forms, ensure_min_samples=2)

    def _fit_session(self, session, X):
        """Release the noisy products; X itself is read by the session alone."""
        n, k = X.shape[1], self.n_components
        unit = EntryUnit("edge", self.adjacency, *map(float, self.entry_bounds))
        ask = session.ask(PrintedQuery(EntryQuery(X, unit), min(float(self.coherence), n)))
        step, length = self._shares(session)
        vectors, values, failed = np.zeros((k, n)), np.zeros(k), False
        for i in range(k):
            failed = failed or not self._run(session, ask, vectors, values, i, step)
            if failed:
                ask.forfeit(length)
            else:
                v, before = vectors[i], vectors[:i].T @ (values[:i] * (vectors[:i] @ vectors[i]))
                values[i] = ask.length(v, before, share=length).value
        return {"components_": vectors, "eigenvalues_": values, "failed_": failed}

    def _run(self, session, ask, vectors, values, i, share):
        """Find one vector of what is left of A; return whether all iterates were spread enough."""
        n, limit = vectors.shape[1], float(self.coherence) / vectors.shape[1]
        x = session.random_signs((n, 1))[:, 0] / math.sqrt(n)
        for t in range(self.n_iter):
            if np.max(x * x) > limit:
                ask.forfeit(share * (self.n_iter - t))
                self._forfeit_rest(ask, i, share)
                return False
            removed = vectors[:i].T @ (values[:i] * (vectors[:i] @ x))
            x = ask.right(x[:, None], share=share).value[:, 0] - removed
            x = x / max(float(np.linalg.norm(x)), 1e-300)
        vectors[i] = fix_signs(x[None])[0]
        return True

    def _forfeit_rest(self, ask, i, share):
        """Pay the steps of the runs that are left out: what is spent must not tell of the data."""
        if left := self.n_components - i - 1:
            ask.forfeit(share * self.n_iter * left)

    def _shares(self, session):
        """Return the shares of one step and of one eigenvalue: fixed before the first step."""
        k, steps = self.n_components, self.n_iter
        if self.calibration == "exact" or session.budget.exact:
            return 1 / (1 + _VALUES) / (k * steps), _VALUES / (1 + _VALUES) / k
        log, each, delta = math.log(1 / self.delta), self.epsilon, self.delta
        if k > 1:
            each, delta = self.epsilon / math.sqrt(4 * k * log), self.delta / k
        multiplier = 2 / each * math.sqrt(4 * steps * math.log(1 / delta))
        share = step_share(session, multiplier, (1 + _VALUES) * k * steps)
        return share, _VALUES * share * steps

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_int(self, "n_iter", 1)
        check_real(self, "coherence", 1, math.inf, closed="left")
        check_option(self, "calibration", ("exact", "printed"))
        check_bounds(self, "entry_bounds")

    def _check_shape(self, shape):
        check_square(self, shape)
        check_columns(self, shape[1])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = True
        return tags


def check_columns(estimator, n):
    """Refuse more components than columns."""
    if estimator.n_components > n:
        raise ValueError(
            f"n_components({estimator.n_components}) must be <= n_features({n}). "
            f"Got n_components={estimator.n_components}."
        )


def check_square(estimator, shape):
    """Refuse what is no adjacency matrix."""
    if shape[0] != shape[1]:
        raise ValueError(
            f"{type(estimator).__name__} needs the square adjacency matrix of a graph for edges. "
            f"Got shape {tuple(shape)} instead."
        )

"""The algorithm as published: Hardt and Roth 2013, figures 2 and 3, power iteration."""

from __future__ import annotations

import math

import numpy as np

from skdp._inputs import checked
from skdp._validation import Seed, check_bounds, check_int, check_option, check_rank, check_real
from skdp.papers._base import _VALUES, Published, PublishedQuery, check_square, step_share
from skdp.queries.entries import EntryQuery, MatrixUnit
from skdp.solvers.linalg import fix_signs


class PowerDeflation(Published):
    """Power iteration for a fixed coherence, and deflation (Hardt, Roth 2013, figures 2, 3).

    `components_` and `eigenvalues_` satisfy (`epsilon`, `delta`)-differential privacy for one edge
    of a graph. For comparisons: `DPSpectralEmbedding` and `DPTruncatedSVD` need no bound on the
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
        Whether an iterate was beyond the coherence. The rest of the budget is then spent too.
    n_features_in_ : int
        Number of nodes.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the nodes, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    Notes
    -----
    Differences from the paper: the start is a unit vector; a pair of entries changes, which costs
    sqrt(2); the noise of the eigenvalues is Gaussian and paid for, by a tenth of what the steps
    spend (the print adds Laplace noise next to its budget); the sum of the rank-one terms is the
    output (the print gives the residual, which is private).

    References
    ----------
    .. [1] Hardt, Roth, "Beyond worst-case analysis in private singular vector computation", STOC
       2013.

    Examples
    --------
    >>> from skdp.datasets import make_block_graph
    >>> from skdp.papers import PowerDeflation
    >>> A, _ = make_block_graph(200, 2, gap=60.0, mean_degree=80.0, random_state=0)
    >>> model = PowerDeflation(1, epsilon=4.0, coherence=40.0).fit(A)
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
        X = checked(self, X, accept_sparse=("csr", "csc", "coo"), ensure_min_samples=2)
        check_square(self, X.shape)
        check_rank(self, math.inf, X.shape[1])
        return X

    def _fit_session(self, session, X):
        """Release the noisy products; X itself is read by the session alone."""
        n, k = X.shape[1], self.n_components
        unit = MatrixUnit("edge", self.adjacency, *map(float, self.entry_bounds))
        ask = session.ask(PublishedQuery(EntryQuery(X, unit), min(float(self.coherence), n)))
        step, length = self._shares(session)
        vectors, values, failed = np.zeros((k, n)), np.zeros(k), False
        for i in range(k):
            failed = failed or not self._run(session, ask, vectors, values, i, step)
            if failed:
                session.charge_skipped(length)
            else:
                v, before = vectors[i], vectors[:i].T @ (values[:i] * (vectors[:i] @ vectors[i]))
                values[i] = ask.length(v, before, share=length).value
        return {"components_": vectors, "eigenvalues_": values, "failed_": failed}

    def _run(self, session, ask, vectors, values, i, share):
        """Find one eigenvector of the deflated A; return whether all iterates were incoherent."""
        n, limit = vectors.shape[1], float(self.coherence) / vectors.shape[1]
        x = session.random_signs((n, 1))[:, 0] / math.sqrt(n)
        for t in range(self.n_iter):
            if np.max(x * x) > limit:
                session.charge_skipped(share * (self.n_iter - t))
                # Runs that are left out are paid, too: what is spent must not tell of them.
                if left := self.n_components - i - 1:
                    session.charge_skipped(share * self.n_iter * left)
                return False
            removed = vectors[:i].T @ (values[:i] * (vectors[:i] @ x))
            x = ask.right(x[:, None], share=share).value[:, 0] - removed
            x = x / max(float(np.linalg.norm(x)), 1e-300)
        vectors[i] = fix_signs(x[None])[0]
        return True

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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = True
        return tags

"""Spectral embedding of a graph with edge-level differential privacy."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from skdp import _choice
from skdp._inputs import check_unit_bound, checked, has_cells, matrix_unit, public_units
from skdp._validation import Seed, check_int, check_option
from skdp.base import BaseDPEstimator, as_input_dtype, atomic
from skdp.exceptions import NoSignalWarning, warn_caller
from skdp.queries.entries import matrix_query
from skdp.solvers.graphs import embed_across, released_degrees
from skdp.solvers.iterate import PASSES, iterate_symmetric, more_columns
from skdp.solvers.linalg import fix_signs
from skdp.solvers.one_shot import FlippedMatrix, symmetric_pairs
from skdp.theory import PlanData, PlansMixin
from skdp.theory._plan import MOST_NUMBERS
from skdp.units import bound_of, offered

# What an embedding shows, from released values alone.


# Of the smallest eigenvalue that is found. Released anew along directions of noise an eigenvalue of
# products is next to 0 (.2 at most where groups agree to a third, .6 to four fifths); those of
# a whole matrix are the largest of the noise itself (.94 at most).
_SEEN = 0.5


def warn_no_signal(estimator, session, attributes, n, whole):
    """Warn if no released eigenvalue exceeds the known edge of the noise.

    `whole` is the noise of a matrix that was released; 0 if products were.
    """
    if session.budget.exact:
        return
    products = [line.noise_scale for line in session.ledger if line.name == "right_product"]
    scales = products["degrees_" in attributes :] or [math.inf]  # the first one released degrees
    mean = math.sqrt(math.fsum(scale * scale for scale in scales) / len(scales))
    edge = _choice.iteration_threshold(whole or _SEEN * mean, n)
    if np.max(np.abs(attributes["eigenvalues_"])) >= edge:
        return
    warn_caller(
        f"{type(estimator).__name__} may have learnt nothing from the graph: no eigenvalue exceeds "
        f"what noise alone (about {edge:.3g}) or a random graph would show. embedding_ may contain "
        "the degrees alone. Use a larger 'epsilon'. Only the upper triangle of X is read: if X is "
        "not symmetric, pass X + X.T.",
        NoSignalWarning,
    )


# Variance of the noise in an average of products with k columns, over k times that of the released
# degrees; it follows from the detection limit of products.
_AVERAGED = 0.68


class GraphPlans(PlansMixin):
    """Plans of embeddings: a graph of equal groups, as many as there are components, or two.

    Fact: `signal`, the eigenvalue that tells the groups apart (None: three times as many edges
    inside a group as a node has to others, of 20 to each).
    """

    _measure = "adjusted Rand index of the groups that k-means finds"

    def _planned_shape(self, n, d):
        if d not in (None, n):
            raise ValueError(f"A graph has as many features as nodes. Got {d!r} and {n}.")
        return n, n

    def _made(self, rng, n, d, signal=None):
        self._check_square((n, n))
        nodes, groups = min(n, math.isqrt(MOST_NUMBERS)), max(2, self.n_components)
        gap = min(40.0, nodes / 4) if signal is None else signal * math.sqrt(nodes / n)
        if isinstance(signal, bool) or not gap > 0:
            raise ValueError(f"'signal' must be None or a positive number. Got {signal!r} instead.")
        labels = rng.permutation(np.arange(nodes) % groups)
        inside = min(1.0, 1.5 * gap * groups / nodes)
        outside = max(0.0, inside - gap * groups / nodes)
        chances = np.where(labels[:, None] == labels, inside, outside)
        A = np.triu(rng.random((nodes, nodes)) < chances, 1)
        A = sp.csr_array((A + A.T).astype(np.float64) * float(np.max(np.abs(bound_of(self)))))

        def score(model):
            rows = model.embedding_ / np.maximum(np.abs(model.embedding_).max(), 1e-300)
            means = KMeans(groups, n_init=3, random_state=0).fit_predict(rows)
            return float(adjusted_rand_score(labels, means))

        said = f"{nodes} nodes in {groups} groups; probability of an edge {inside:.2g} within a "
        said += f"group, {outside:.2g} between groups"
        return PlanData(lambda model: model.fit(A), score, (said,), best=math.nan)


class DPSpectralEmbedding(GraphPlans, BaseDPEstimator):
    """Spectral embedding of a graph with (epsilon, delta)-differential privacy for one edge.

    `embedding_` and all other fitted attributes satisfy (`epsilon`, `delta`)-differential privacy
    for adding or removing one edge (or changing its weight), whatever the graph is. The nodes are
    public, so the embedding of every node may be published. Edge privacy protects one relation, not
    all relations of a node.

    Parameters
    ----------
    n_components : int, default=2
        Dimension of the embedding; one less than the number of groups for clustering.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails. 0 (pure differential privacy) needs "one_shot", or
        ``n_components=1``.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        One edge is added or removed, or its weight changes within the bounds ("edge" only).
    privacy_unit : {"edge", "edge_change", "mixed"}, default="edge"
        "edge": one edge, whose weight lies in `unit_bound`. The others need no bounds of weights;
        you ensure them, because the code cannot check them. "edge_change": one weight changes by at
        most `unit_bound`. "mixed": the norm of the rows' sums of absolute changes is at most
        `unit_bound`, so all edges of a node may change a little.
    affinity : {"precomputed"}, default="precomputed"
        X is the symmetric adjacency matrix. Only its upper triangle is read, without a check; loops
        are dropped.
    normalization : {"degree", "laplacian", "none"}, default="degree"
        "degree" divides rows and columns by the root of their known noise, and removes the
        direction of the released degrees, except for the part that separates groups. If nothing
        else exceeds the noise, unequal degrees are the first column. "laplacian" removes the
        direction of the roots of the noise instead, and scales rows to norm 1. "none" returns the
        leading eigenvectors. It is better at small budgets if groups have unequal sizes and nodes
        of a group are similar, and worse otherwise.
    n_iter : int or "auto", default="auto"
        Number of noisy products of "power". Each is a release, and the fit uses all of them.
    algorithm : {"auto", "power", "one_shot"}, default="auto"
        "power" releases noisy products with the graph. "one_shot" flips each pair with probability
        1/(1 + e^epsilon), with pure differential privacy for any `n_components`. It is rejected if
        it would flip more than 2e7 pairs. "auto" takes the lower detection limit, from public
        numbers. If it matters, it first releases the mean weight and the variance of rounding the
        weights. In a PrivacyLedger it assumes that each weight is 0 or `high`.
    unit_bound : (low, high), float or None, default=None
        The bound of the unit. "edge": weights are clipped to (low, high), which must contain 0;
        None is (0, 1). "one_shot" needs (0, high), and rounds a weight w to `high` with probability
        w/high, else to 0; up to 1,500 nodes it uses Laplace noise instead if a released number
        shows that its error is smaller. With other bounds, for up to 1,500 nodes and
        ``n_components=1``, "auto" may add Laplace noise to the weights. Other units: the largest
        change (of floats); None is 1.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".

    Attributes
    ----------
    embedding_ : ndarray of shape (n_nodes, n_components)
        Released embedding of the nodes. With "degree", columns that are mostly noise are scaled
        down.
    eigenvalues_ : ndarray of shape (n_components,)
        Released eigenvalues, signed, by decreasing magnitude; those of the scaled graph unless
        normalization="none". With "one_shot" they are debiased, and 0 below the noise level. A
        warning says if none exceeds it.
    degrees_ : ndarray of shape (n_nodes,)
        Released degrees, shrunk towards their mean (not with normalization="none").
    algorithm_reason_ : str
        Which algorithm was used, and why.
    n_features_in_ : int
        Number of nodes.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the nodes, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    sklearn.manifold.SpectralEmbedding : The estimator without privacy.

    References
    ----------
    .. [1] Hardt, Roth, "Beyond worst-case analysis in private singular vector computation",
       STOC 2013.

    Examples
    --------
    >>> from skdp import DPSpectralEmbedding
    >>> from skdp.datasets import make_block_graph
    >>> A, labels = make_block_graph(1000, 2, gap=150.0, mean_degree=300.0, random_state=0)
    >>> model = DPSpectralEmbedding(n_components=1, epsilon=2.0).fit(A)
    >>> side = model.embedding_[:, 0] > 0
    >>> agree = float((side == labels).mean())
    >>> max(agree, 1 - agree) > 0.9
    True
    """

    _privacy_units = offered("edge", "edge_change", "mixed")

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "edge",
        affinity: str = "precomputed",
        normalization: str = "degree",
        n_iter: int | str = "auto",
        algorithm: str = "auto",
        unit_bound: Any = None,
        random_state: Seed = None,
    ) -> None:
        self.n_components = n_components
        self.affinity = affinity
        self.normalization = normalization
        self.n_iter = n_iter
        self.algorithm = algorithm
        self.unit_bound = unit_bound
        self.random_state = random_state
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit

    @atomic
    def fit(self, X: Any, y: Any = None) -> Self:
        """Embed the nodes; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_nodes, n_nodes)
            Adjacency matrix; the upper triangle counts.
        y : Ignored
            Not used.

        Returns
        -------
        self : DPSpectralEmbedding
            The fitted estimator.
        """
        self._check_parameters()
        self._checked_session()  # what is wrong with the budget is said before the shape
        if hasattr(X, "adjacency"):  # a graph of networkx, which numpy takes for a list of nodes
            raise TypeError("X must be a matrix: pass networkx.to_scipy_sparse_array(graph).")
        X = checked(self, X, accept_sparse=("csr", "csc", "coo"), ensure_min_samples=2)
        self._check_square(X.shape)
        session = self._open_session(pure=self._route(X.shape[0])[0] != "power")
        attributes, reason, whole = self._fit_session(session, X)
        warn_no_signal(self, session, attributes, X.shape[0], whole)
        attributes = as_input_dtype(attributes, X.dtype) | {"algorithm_reason_": reason}
        return self._close_session(session, attributes)

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Embed the nodes and return the embedding, which may be published.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_nodes, n_nodes)
            Adjacency matrix; the upper triangle counts.
        y : Ignored
            Not used.

        Returns
        -------
        embedding : ndarray of shape (n_nodes, n_components)
            Released embedding of the nodes.
        """
        return self.fit(X).embedding_

    def _check_parameters(self):
        check_option(self, "privacy_unit", tuple(self._privacy_units))
        check_int(self, "n_components", 1)
        check_option(self, "affinity", ("precomputed",))
        check_option(self, "normalization", ("degree", "laplacian", "none"))
        check_int(self, "n_iter", 1, also=("auto",))
        check_option(self, "algorithm", ("auto", "power", "one_shot"))
        check_unit_bound(self)
        if self.algorithm == "one_shot" and not has_cells(self):
            raise ValueError(
                "algorithm='one_shot' needs privacy_unit='edge' and unit_bound=(0, high). Got "
                f"privacy_unit={self.privacy_unit!r} and unit_bound={self.unit_bound!r}."
            )

    def _check_square(self, shape):
        n = shape[0]
        if shape[1] != n:
            raise ValueError(
                "DPSpectralEmbedding needs a square adjacency matrix (affinity='precomputed'). "
                f"Got shape {shape} instead."
            )
        if self.n_components >= n:
            raise ValueError(f"n_components must be below n_nodes={n}. Got {self.n_components}.")

    def _offers_pure_dp(self):
        return self.n_components == 1 or (self.algorithm != "power" and has_cells(self))

    def _budget_kinds(self):
        both = ("pure", "gaussian") if self._offers_pure_dp() else ("gaussian",)
        return {"one_shot": ("pure",), "auto": both}.get(self.algorithm, ("gaussian",))

    def _route(self, n, entries=None):
        """Return (name, reason): of the settings, the number of nodes, and released facts."""
        n_answers = PASSES["power"][int(self.delta == 0)] if self.n_iter == "auto" else self.n_iter
        facts = matrix_unit(self), (n, n), n_answers, "power"
        return _choice.choose_one_shot(self, *facts, groups=True, entries=entries)

    def _fit_session(self, session, X):
        """Release products with the graph, or its flipped pairs; then embed the nodes."""
        n, unit = X.shape[0], matrix_unit(self)
        route, reason = self._route(n)
        if route == "auto" and self.delta > 0:
            session.leave_open(self.delta)
        self._warn_of_delta(*public_units(self, X.shape, session))
        ask, rounding = session.ask(matrix_query(X, unit)), None
        if route == "auto":
            known = _choice.released_entries(ask, unit, X.shape)
            rounding, (route, reason) = known.rounding, self._route(n, known)
            if route != "one_shot" and self.delta > 0:
                session.take_delta()
        if route == "one_shot":
            ask = _choice.released_whole(session, ask, unit, X.shape, rounding)
        whole = ask.noise_scale if isinstance(ask, FlippedMatrix) else 0.0
        return self._embedded(session, ask, n), reason, whole

    def _embedded(self, session, ask, n):
        """Embed by the leading eigenvectors: as they are, without the degrees, or scaled by them.

        If the graph was released, all of it is post-processing.
        """
        k, released = self.n_components, isinstance(ask, FlippedMatrix)
        share = 0.0 if released else session.remaining(session.budget.kind)

        def eigenpairs(graph, share, project, ones_first):
            if released:
                return symmetric_pairs(graph, n, k, project, ask.kurtosis)
            more = max(1, more_columns(session, k)) if session.law == "gaussian" else 0
            start = session.random_start(n, min(k + more, n - 1), ones_first=ones_first)
            options = {"law": session.law, "n_iter": self.n_iter, "project": project}
            return iterate_symmetric(graph, start, k, share, **options)[:2]

        if self.normalization == "none":
            values, V = eigenpairs(ask, share, np.asarray, matrix_unit(self).low >= 0)
            return {"embedding_": fix_signs(V.T).T, "eigenvalues_": values}
        part = share / (PASSES["power"][0] + 1)  # as if it were one product more
        degrees, alpha = released_degrees(ask, n, part), matrix_unit(self).alpha
        # The noise of the eigenvectors, over the variance of released degrees.
        spread = 0.0 if released else _AVERAGED * k
        rest = lambda graph, across: eigenpairs(graph, share - part, across, False)  # noqa: E731
        angles = self.normalization == "laplacian"
        values, embedding = embed_across(ask, degrees, alpha, rest, spread, angles=angles)
        return {"embedding_": embedding, "eigenvalues_": values, "degrees_": degrees.value}

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = True
        return tags

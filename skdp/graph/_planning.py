"""The plan of a spectral embedding, from the number of nodes alone."""

import math

import numpy as np
import scipy.sparse as sp

from skdp.queries.entries import EntryQuery, EntryUnit
from skdp.theory import FitPlan, iteration_error, iteration_threshold, planned

__all__ = ["plan_embedding"]


def plan_embedding(estimator, session, n, eigenvalue, degree_share):
    """Return the plan: bounds from the query of the fit over an empty graph."""
    k = estimator.n_components
    low, high = map(float, estimator.entry_bounds)
    query = EntryQuery(sp.csr_array((n, n)), EntryUnit("edge", session.adjacency, low, high))
    pure = session.budget.pure
    releases, rest = [], 1.0
    if estimator.normalization != "none":
        bound = query.right(np.full((n, 1), 1 / math.sqrt(n))).bound
        releases.append(planned(session, bound, degree_share, name="degrees"))
        rest -= degree_share
    core = 0.1 if pure else 0.02
    steps = (8 if pure else 16) if estimator.n_iter == "auto" else estimator.n_iter
    basis = np.zeros((n, k))
    basis[np.arange(n), np.arange(n) % k] = 1.0
    basis /= np.sqrt(basis.sum(axis=0))
    share = (1 - core) * rest
    product = planned(session, query.right(basis).bound, share, times=steps)
    releases += [product, planned(session, query.ritz(basis).bound, core * rest)]
    known = eigenvalue is not None and estimator.normalization != "laplacian"
    assumed = ["eigenvectors are spread over the nodes (low coherence)"]
    if eigenvalue is not None:
        assumed.append(f"the eigenvalue to be found is {eigenvalue:g}")
    budget = session.budget
    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=n,
        n_features=n,
        guarantee=f"epsilon={budget.epsilon:g}, delta={budget.delta:g}, unit edge, "
        f"{session.adjacency}",
        mu=budget.mu,
        unit="1",
        error=(
            iteration_error(product.noise_scale, steps, n, eigenvalue, laplace=pure)
            if known
            else math.nan
        ),
        meaning="squared sine between released and exact eigenvectors",
        found=iteration_threshold(product.noise_scale, n, laplace=pure),
        signal="eigenvalue of the graph across its degrees",
        assumptions=tuple(assumed),
        releases=tuple(releases),
    )

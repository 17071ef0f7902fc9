"""What an embedding shows, from released values alone."""

import math

import numpy as np

from skdp.exceptions import PrivacyWarning, warn_caller
from skdp.solvers.graphs import degree_scale
from skdp.theory import IteratedSide
from skdp.theory._one_shot import flipped_side

# Of the smallest eigenvalue that is found. Released anew along directions of noise an eigenvalue of
# products is next to 0 (.2 at most where groups agree to a third, .6 to four fifths); those of
# flipped pairs are the largest of the noise itself (.94 at most).
_SEEN_BY_PRODUCTS, _SEEN_BY_FLIPS = 0.5, 1.0


def warn_of_nothing(estimator, session, attributes, n):
    """Warn if no released eigenvalue stands above the known edge of the noise."""
    if session.budget.exact:
        return
    edge, seen = _edge(estimator, session, attributes.get("degrees_"), n)
    if np.max(np.abs(attributes["eigenvalues_"])) >= seen * edge:
        return
    warn_caller(
        f"{type(estimator).__name__} found no eigenvalue above its noise: the embedding shows "
        f"nothing of the graph. At this budget an eigenvalue of about {edge:.3g} is found "
        "(across the degrees, in the units of 'eigenvalues_'): use a larger 'epsilon', fewer "
        "components, or a graph whose groups hold more edges.",
        PrivacyWarning,
    )


def _edge(estimator, session, degrees, n):
    """Return the smallest eigenvalue that is found, and the share of it from which one is seen."""
    flips = [line.noise_scale for line in session.ledger if line.name == "cells"]
    if flips:
        side = flipped_side(flips[0] * float(estimator.entry_bounds[1]), n, n)
        edge, seen = side.threshold, _SEEN_BY_FLIPS
    else:
        products = [line for line in session.ledger if line.name == "right_product"]
        products = products[degrees is not None :]  # the first one released the degrees
        side = IteratedSide.of(products, n, laplace=session.law == "laplace")
        edge, seen = side.threshold, _SEEN_BY_PRODUCTS
    if estimator.normalization == "laplacian":
        scale = degree_scale(degrees)
        edge *= math.sqrt(np.mean(scale**2)) * (math.sqrt(np.mean(scale**2)) if flips else 1.0)
    return edge, seen

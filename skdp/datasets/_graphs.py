"""Synthetic graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp


def make_block_graph(
    n_nodes: int = 1000,
    n_blocks: int = 2,
    gap: float = 60.0,
    mean_degree: float = 150.0,
    *,
    random_state: Any = None,
) -> Any:
    """Stochastic block model with balanced blocks.

    Parameters
    ----------
    n_nodes, n_blocks : int
        Sizes.
    gap : float
        The second eigenvalue of the expected adjacency matrix: how far the blocks stand out.
    mean_degree : float
        Average degree.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    A : csr_array of shape (n_nodes, n_nodes)
        Symmetric adjacency matrix without loops.
    labels : ndarray of shape (n_nodes,)
        Block of each node.

    Examples
    --------
    >>> from skdp.datasets import make_block_graph
    >>> A, labels = make_block_graph(40, 2, 10.0, 12.0, random_state=0)
    >>> A.shape, labels.shape
    ((40, 40), (40,))
    """
    rng = np.random.default_rng(random_state)
    labels = rng.permutation(np.arange(n_nodes) % n_blocks)
    outside = mean_degree / n_nodes - gap / n_nodes
    inside = outside + gap * n_blocks / n_nodes
    if not 0 <= outside <= inside <= 1:
        raise ValueError("'gap' and 'mean_degree' give probabilities outside [0, 1].")
    rows, columns = [], []
    for i in range(n_nodes - 1):
        chance = np.where(labels[i + 1 :] == labels[i], inside, outside)
        linked = np.flatnonzero(rng.random(n_nodes - i - 1) < chance) + i + 1
        rows.append(np.full(len(linked), i))
        columns.append(linked)
    pairs = (np.concatenate(rows), np.concatenate(columns))
    upper = sp.csr_array((np.ones(len(pairs[0])), pairs), shape=(n_nodes, n_nodes))
    return sp.csr_array(upper + upper.T), labels

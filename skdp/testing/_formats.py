"""One matrix in several formats, the awkward ones among them, and the smallest blocks of rows."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp


def _dense_csr(X):
    return sp.csr_array(X)


def _csr_with_duplicates(X):
    """CSR in which every entry is stored as two halves, in reverse order, flagged canonical."""
    whole = sp.coo_array(X)
    row, column = (np.concatenate([part, part]) for part in whole.coords)
    order = np.argsort(row, kind="stable")[::-1]
    order = order[np.argsort(row[order], kind="stable")]
    halves = np.concatenate([whole.data, whole.data])
    counts = np.bincount(row, minlength=X.shape[0])
    # Half of a subnormal would be rounded: those entries are stored whole, next to a zero.
    first = np.arange(len(halves)) < len(whole.data)
    small = np.abs(halves) < 1e-290
    halves = np.where(small, np.where(first, halves, 0.0), halves / 2)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sp.csr_array((halves[order], column[order], indptr), shape=X.shape)


def _csr_with_zeros(X):
    """CSR in which every entry is stored, zeros too."""
    n, d = X.shape
    indptr = np.arange(0, n * d + 1, d)
    return sp.csr_array((X.ravel().copy(), np.tile(np.arange(d), n), indptr), shape=X.shape)


def _csr_unsorted(X):
    """CSR whose indices fall within each row."""
    rows = sp.csr_array(X)
    order = np.concatenate(
        [np.arange(a, b)[::-1] for a, b in pairwise(rows.indptr)], dtype=np.intp, casting="unsafe"
    )
    return sp.csr_array((rows.data[order], rows.indices[order], rows.indptr), shape=X.shape)


FORMATS: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": np.asarray,
    "csr": _dense_csr,
    "csr with duplicates": _csr_with_duplicates,
    "csr with explicit zeros": _csr_with_zeros,
}

# The same matrix as CSR, stored otherwise: which entries are stored is as private as they are.
STORED: dict[str, Callable[[np.ndarray], Any]] = {
    "duplicates": _csr_with_duplicates,
    "every entry stored": _csr_with_zeros,
    "unsorted indices": _csr_unsorted,
}


def formatted(data, to):
    return (to(data[0]), *data[1:]) if isinstance(data, tuple) else to(data)


class small_blocks:
    """Cut rows into the smallest blocks."""

    def __enter__(self):
        from skdp.data import blocks

        self._blocks, self._bytes = blocks, blocks._BLOCK_BYTES
        blocks._BLOCK_BYTES = 64

    def __exit__(self, *_):
        self._blocks._BLOCK_BYTES = self._bytes

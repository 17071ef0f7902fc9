"""Products of private rows with public matrices: each row's result depends on that row alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import CACHED, WIDER, FloatArray, IntArray
from skdp.data.blocks import largest_entries, rint, rows_times_powers, square_norms
from skdp.data.factorisations import of_public, row_squares
from skdp.data.integers import GRID_BITS, TAME

# Products of rows with a public matrix in which a row's result depends on that row alone.


def row_products(X: NDArray[Any], V: NDArray[Any]) -> FloatArray:
    """Return X V, each row of it a function of that row of X and of V, bit by bit.

    BLAS adds up in an order that depends on where a row stands, so with one row less the last bit
    of many rows of X @ V changes. A private step that is fitted on them would then see neighbours
    that differ in more than one row. Here rows x and columns v are scaled by powers of two to
    norms below 2**26, and cut into integers and b more bits, 2**b <= 2**27/sqrt(d): by
    Cauchy-Schwarz any part of a sum of products lies below 2**53, so that it is exact in every
    order. What is dropped is about d 2**-49 of |x| |v| at most, and far less on average.
    """
    n, d = X.shape
    bits = GRID_BITS + 1 - math.ceil(math.log2(max(1, d)) / 2)
    V = np.ascontiguousarray(V, np.float64)  # products of few columns are faster in C order
    largest = np.frexp(np.abs(V).max(axis=0, initial=0.0))[1]  # columns are below 2**unit, even if
    unit = largest + np.frexp(np.linalg.norm(np.ldexp(V, -largest), axis=0))[1]  # squares overflow
    high, low = _halves(np.ldexp(V, GRID_BITS - unit), bits)
    both, k = np.hstack([high, low]), V.shape[1]
    out = np.empty((n, k))
    size = max(16, CACHED // max(1, d))
    # Fresh memory for each block costs as much as the products.
    scaled, whole = np.empty((2, min(n, size), d))
    with np.errstate(all="ignore"):  # as BLAS does
        for i in range(0, n, size):
            rows = np.ascontiguousarray(X[i : i + size], np.float64)  # norms add up in one order
            memory = scaled[: len(rows)]
            exponents = _powers(rows)
            values = rows_times_powers(rows, GRID_BITS - exponents, memory)
            first, second = _halves(values, bits, whole[: len(rows)])
            products = first @ both
            total = (second @ high + products[:, k:]) * 2.0**-bits + products[:, :k]
            _scaled(total, exponents, unit - 2 * GRID_BITS, out[i : i + size])
    return out


def _powers(rows: FloatArray) -> NDArray[np.intc]:
    """Return for each row an exponent e with norm < 2**e, rounded up to a multiple of 4.

    Rounded, many rows of a block have the same exponent, and one number scales them all.
    """
    squares = square_norms(rows)
    powers = np.frexp(squares)[1]
    hard = np.flatnonzero(~((squares > TAME**2) & (squares < TAME**-2)))
    if hard.size:  # too small or too large to be squared
        beyond = math.ceil(math.log2(max(1, rows.shape[1])) / 2)
        powers[hard] = 2 * (np.frexp(largest_entries(rows[hard]))[1] + beyond)
    powers = -(-powers >> 3) * 4
    return powers[:1] if (powers == powers[:1]).all() else powers


def _scaled(
    values: FloatArray, rows: NDArray[np.intc], columns: NDArray[Any], out: FloatArray
) -> None:
    """Write values times the powers of two of their rows and columns: what `ldexp` returns."""
    most = sum(int(np.abs(powers).max(initial=0)) for powers in (rows, columns))
    if most < 1022:  # a product with a normal float is rounded once, as there
        np.multiply(values, np.ldexp(1.0, rows)[:, None] * np.ldexp(1.0, columns), out=out)
    else:
        np.ldexp(values, rows[:, None] + columns, out=out)


def _halves(values: FloatArray, bits: int, out: Any = None) -> tuple[FloatArray, FloatArray]:
    """Return integers h, l with values = h + 2**-bits l + rounding; l is written in `values`."""
    high = np.rint(values, out=out)
    values -= high
    values *= 2.0**bits
    return high, rint(values)


def saturated(values: NDArray[Any]) -> NDArray[Any]:
    """Replace infinite values by the largest float.

    Otherwise a finite row that overflows here would raise an error in the next step, which would
    reveal it.
    """
    largest = np.finfo(values.dtype).max
    return np.asarray(np.clip(values, -largest, largest, out=values))


def in_dtype(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return public numbers in this dtype, or as they are where it makes 0 or infinity of them."""
    with np.errstate(over="ignore"):
        cast = values.astype(dtype, order="C")
    return cast if np.isfinite(cast).all() and cast.any() == values.any() else values


# Integer sketch matrices, and exact products of a private matrix with them modulo 2**64.
#
# Notation: A is m x n; F (n x t) and S (m x v) are integer matrices, each divided by a public
# scale; Z is A in integer units. Products are exact in any order of the updates, blocks and rows.


@dataclass(frozen=True, eq=False)
class IntegerSketch:
    """An n x size integer matrix; the sketch is the matrix divided by `scale`.

    Attributes
    ----------
    kind : str
        "gaussian" (entries smaller in convex order than N(0, 1/size) once scaled), "sparse",
        "srht", "isometry" or "ones" (the sum of the rows).
    scale : float
        Root mean square norm of a row.
    matrix : ndarray of shape (n, size), or None for "sparse"
        The integers.
    positions, signs : ndarray of shape (n, each)
        For "sparse": where the entries +-1 of each row are.
    """

    kind: str
    size: int
    scale: float
    matrix: IntArray | None = field(default=None, repr=False)
    positions: IntArray = field(default_factory=lambda: np.zeros((0, 0), np.int64), repr=False)
    signs: IntArray = field(default_factory=lambda: np.zeros((0, 0), np.int64), repr=False)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.positions if self.matrix is None else self.matrix)

    def integers(self) -> IntArray:
        """Return the integer matrix."""
        if self.matrix is not None:
            return self.matrix
        out = np.zeros((self.n, self.size), np.int64)
        out[np.arange(self.n)[:, None], self.positions] = self.signs
        return out

    def real(self) -> FloatArray:
        """Return the sketch as floats."""
        return self.integers() / self.scale

    def largest_row(self) -> float:
        """Return the largest norm of a row, rounded up: exact integers before the root."""
        if self.matrix is None:
            return math.sqrt(self.positions.shape[1]) / self.scale * WIDER
        squares = row_squares(self.matrix)
        return math.sqrt(int(squares.max(initial=0))) / self.scale * WIDER

    def spectral(self) -> float:
        """Return the spectral norm, rounded up.

        The Gram matrix is exact (integers below 2**53); a symmetric eigenvalue solver is backward
        stable, so its error is below size * 2**-50 of the norm: less than 1e-9.
        """
        F = self.integers().astype(np.float64)
        gram = F.T @ F if F.shape[0] >= F.shape[1] else F @ F.T
        return math.sqrt(float(of_public(np.linalg.eigvalsh, gram)[-1])) / self.scale * WIDER

    def rows(self, start: int, stop: int) -> IntegerSketch:
        """Return the sketch of a range of rows."""
        matrix = None if self.matrix is None else self.matrix[start:stop]
        return IntegerSketch(
            self.kind, self.size, self.scale, matrix,
            self.positions[start:stop], self.signs[start:stop],
        )  # fmt: skip


def _exact_product(Z: Any, F: IntArray, small: bool) -> IntArray:
    """Return Z F modulo 2**64; Z holds integers of at most 52 bits (26, if `small`)."""
    if sp.issparse(Z):
        return signed(_words(Z) @ F.view(np.uint64))
    low = 2.0**GRID_BITS  # a float64 product is exact in two limbs of so many bits
    limbs = [Z] if small else [np.rint(Z / low)]
    if not small:
        limbs.insert(0, Z - limbs[0] * low)
    G = F.astype(np.float64)
    chunk = max(1, int(2.0**53 / (low * max(1.0, float(np.abs(G).max(initial=1.0))))))
    total = np.zeros((Z.shape[0], F.shape[1]), np.uint64)
    for place, limb in enumerate(limbs):
        for i in range(0, F.shape[0], chunk):
            part = (limb[:, i : i + chunk] @ G[i : i + chunk]).astype(np.int64)
            total += part.view(np.uint64) << np.uint64(GRID_BITS * place)
    return signed(total)


def _words(Z: Any) -> Any:
    """Return sparse integers as words modulo 2**64."""
    if Z.dtype == np.uint64:
        return Z
    data = Z.data.astype(np.int64).view(np.uint64)
    return sp.csr_array((data, Z.indices, Z.indptr), shape=Z.shape)


def signed(words: NDArray[np.uint64]) -> IntArray:
    """Return words modulo 2**64 as signed integers."""
    return np.ascontiguousarray(words).view(np.int64)


@dataclass(frozen=True, eq=False)
class SketchMap:
    """The map A -> S'A F; without S or F that side is left as it is.

    Attributes
    ----------
    name : str
        Name of the release.
    shape : tuple of int
        Shape of A.
    left, right : IntegerSketch or None
        S and F.
    """

    name: str
    shape: tuple[int, int]
    left: IntegerSketch | None = None
    right: IntegerSketch | None = None

    @property
    def out_shape(self) -> tuple[int, int]:
        """Shape of the sketch."""
        return (
            self.shape[0] if self.left is None else self.left.size,
            self.shape[1] if self.right is None else self.right.size,
        )

    @property
    def scale(self) -> float:
        """What the integers are divided by."""
        return math.prod(side.scale for side in (self.left, self.right) if side is not None)

    def add_matrix(self, total: IntArray, Z: Any, first: int = 0, small: bool = False) -> IntArray:
        """Add the sketch of rows `first`, ... of integers (floats that hold them) to a sketch.

        It is exact modulo 2**64, and touches their rows alone.
        """
        stop = first + Z.shape[0]
        place = total[first:stop] if self.left is None else total
        words = place.view(np.uint64)
        words += self._of_rows(Z, first, stop, small).view(np.uint64)
        return total

    def _of_rows(self, Z: Any, first: int, stop: int, small: bool) -> IntArray:
        left = None if self.left is None else self.left.rows(first, stop)
        if left is None:
            if self.right is not None:
                return _exact_product(Z, self.right.integers(), small)
            return signed(_words(Z).toarray()) if sp.issparse(Z) else np.asarray(Z, np.int64)
        if self.right is None:
            Zt = sp.csr_array(Z.T) if sp.issparse(Z) else Z.T
            return np.ascontiguousarray(_exact_product(Zt, left.integers(), small).T)
        inner = _exact_product(Z, self.right.integers(), small).view(np.uint64)
        return signed(left.integers().T.view(np.uint64) @ inner)

    def of_updates(self, rows: IntArray, columns: IntArray, z: IntArray) -> IntArray:
        """Return the sketch of updates (row, column, integer), exactly."""
        sides, out = (self.left, self.right), np.zeros(self.out_shape, np.int64)
        if any(side is not None and side.matrix is not None for side in sides):
            D = sp.csr_array((z.view(np.uint64), (rows, columns)), shape=self.shape)
            return self.add_matrix(out, D)
        width = self.out_shape[1]
        i, zi = _spread(self.left, rows, z)
        j, sj = _spread(self.right, columns, np.ones(len(columns), np.int64))
        index = i[:, :, None] * width + j[:, None, :]
        np.add.at(out.reshape(-1), index.reshape(-1), (zi[:, :, None] * sj[:, None, :]).reshape(-1))
        return out

    def add_floats(self, total: FloatArray, A: Any, first: int = 0) -> FloatArray:
        """Add the sketch of rows `first`, ... of floats to a sketch: epsilon is infinite."""
        stop = first + A.shape[0]
        P = A if self.right is None else A @ self.right.real()
        if self.left is not None:
            total += np.asarray((P.T @ self.left.rows(first, stop).real()).T)
        else:
            total[first:stop] += P.toarray() if sp.issparse(P) else P
        return total


def _spread(side: IntegerSketch | None, index: IntArray, z: IntArray) -> tuple[IntArray, IntArray]:
    if side is None:
        return index[:, None], z[:, None]
    return side.positions[index], z[:, None] * side.signs[index]

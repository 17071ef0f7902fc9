"""Second moments of rows whose privacy unit is one entry.

Notation: A is m x n with entries clipped to [lo, hi], which holds 0; both shapes are public. Rows
are shortened to a public clip norm C after that, so one entry moves one row.

Change of A'A by one entry: let a row have u beside the entry and s in it, and F(s) be the largest
||x x' - y y'||_F for x the clipped (u, s) and y the clipped (u, 0). Unclipped it is
|s| sqrt(2 |u|^2 + s^2), with |u|^2 <= C^2 - s^2. If both are clipped, x and y have length C and
angle arctan(|s|/|u|), |u| >= C: sqrt(2) C^2 |s| / sqrt(|u|^2 + s^2), largest at |u| = C. If x alone
is, with z = |u|^2 the square is C^4 + z^2 - 2 C^2 z^2/(z + s^2), which falls and then rises in z:
largest at the ends of [max(C^2 - s^2, 0), C^2], which are the other cases (or y = 0: C^2). So
F(s) = |s| sqrt(2 C^2 - s^2) for |s| <= C, and sqrt(2) C^2 |s| / sqrt(C^2 + s^2) beyond.
add_remove is F of the larger bound; replace goes by way of 0: F(hi) + F(lo).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.entries import EntryUnit, cleaned, rounded_release
from skdp.queries.sums import whole_steps

FloatArray = NDArray[np.float64]
_ULP = 2.0**-53


def moment_change(unit: EntryUnit, clip_norm: float) -> float:
    """Return the largest Frobenius norm of the change of A'A: see the module."""

    def against_zero(s: float) -> float:
        C = clip_norm
        return (
            s * math.sqrt(2 * C * C - s * s)
            if s <= C
            else math.sqrt(2) * C * C * s / math.hypot(C, s)
        )

    sizes = abs(unit.low), abs(unit.high)
    if unit.adjacency == "replace":
        return against_zero(sizes[0]) + against_zero(sizes[1])
    return against_zero(max(sizes))


class EntryRowQuery(PrivateQuery):
    """Norms, sums and second moments of rows; neighbours differ in one entry.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix.
    unit : EntryUnit
        "entry".
    """

    def __init__(self, A: Any, unit: EntryUnit) -> None:
        if unit.name != "entry":
            raise ValueError(f"rows of entries have the unit 'entry'. Got {unit.name!r}.")
        self._raw, self.unit = A, unit
        self.shape: tuple[int, int] = A.shape
        self.clip_norm = max(abs(unit.low), abs(unit.high)) * math.sqrt(A.shape[1])
        self._kept: NDArray[np.intp] | None = None
        self._clean: dict[str, Any] = {}  # shared by what was narrowed

    def clipped(self, clip_norm: float) -> EntryRowQuery:
        """Return the same rows under a public clip norm."""
        return self._with(clip_norm=min(float(clip_norm), self.clip_norm))

    def columns(self, kept: NDArray[np.intp]) -> EntryRowQuery:
        """Return the rows on a public selection of columns; they are clipped after it."""
        kept = kept if self._kept is None else self._kept[kept]
        return self._with(_kept=kept, shape=(self.shape[0], len(kept)))

    def _with(self, **public: Any) -> EntryRowQuery:
        narrow = copy.copy(self)
        vars(narrow).update(public)
        return narrow

    def _rows(self) -> Any:
        """Return the rows with clipped entries: inside the gate."""
        if "rows" not in self._clean:
            A = cleaned(self._raw, self.unit)
            self._clean["rows"] = sp.csr_array(A) if sp.issparse(A) else A
        A = self._clean["rows"]
        return A if self._kept is None else A[:, self._kept]

    def _norms(self) -> FloatArray:
        squares = self._rows() ** 2
        return np.sqrt(np.asarray(squares.sum(axis=1), np.float64).reshape(-1))

    def _clipped_rows(self) -> Any:
        scale = np.minimum(1.0, self.clip_norm / np.maximum(self._norms(), 1e-300))
        A = self._rows()
        return sp.diags_array(scale) @ A if sp.issparse(A) else A * scale[:, None]

    def _error(self) -> float:
        """Bound the float error of A'A in two neighbours."""
        return 2 * (sum(self.shape) + 16) * _ULP * self.shape[0] * self.clip_norm**2

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many norms are at most the threshold, minus half of those that are not 0.

        One entry moves one norm, by way of -1/2, 0 or 1/2: at most 1.
        """

        def answer(step: float) -> NDArray[Any]:
            norms = self._norms()
            low = int(np.count_nonzero((norms > 0) & (norms <= threshold)))
            return whole_steps(step, (low, 0.5), (int(np.count_nonzero(norms > threshold)), -0.5))

        return Bounded(Bound("norm_median", (), 1.0, slack=1.0, l1=1.0, l1_slack=1.0), answer)

    def norms_above(self, threshold: float) -> Bounded:
        """Return how many rows are longer than a threshold: one entry moves one of them."""

        def answer(step: float) -> NDArray[Any]:
            return whole_steps(step, (int(np.count_nonzero(self._norms() > threshold)), 1.0))

        return Bounded(Bound("norm_rank", (), 1.0, slack=1.0, l1=1.0, l1_slack=1.0), answer)

    def counts(self) -> Bounded:
        """Return the column sums of clipped entries: one of them moves by alpha."""
        m, n = self.shape
        error = 2 * (m + 2) * _ULP * m * max(abs(self.unit.low), abs(self.unit.high))
        return rounded_release(
            "counts", (n,), self.unit.alpha, error,
            lambda: np.asarray(self._rows().sum(axis=0)).reshape(-1), l1=self.unit.alpha,
        )  # fmt: skip

    def gram(self) -> Bounded:
        """Return A'A of rows with clipped norms: see the module."""
        n = self.shape[1]

        def compute() -> Any:
            rows = self._clipped_rows()
            M = rows.T @ rows
            return M.toarray() if sp.issparse(M) else M

        l2 = moment_change(self.unit, self.clip_norm)
        return rounded_release("gram", (n, n), l2, self._error(), compute, symmetric=True)

    def ritz(self, V: FloatArray) -> Bounded:
        """Return V'A'A V: ||V'E V||_F <= ||V||_2^2 ||E||_F for the change E of A'A."""
        V = np.asarray(V, np.float64)
        spectral, k = float(np.linalg.norm(V, 2)) ** 2, V.shape[1]

        def compute() -> Any:
            P = self._clipped_rows() @ V
            return P.T @ P

        l2 = moment_change(self.unit, self.clip_norm) * spectral
        error = self._error() * float(np.linalg.norm(V)) ** 2
        return rounded_release("ritz", (k, k), l2, error, compute, symmetric=True)

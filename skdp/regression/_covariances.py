"""Covariances of single records, as users hand them over beside the records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skdp.data.blocks import DenseRows
from skdp.data.known_records import COVARIANCES, inverses
from skdp.data.mixed_records import MOST
from skdp.data.places import Placed

RECORDS = "records"  # the value of `design`
_AT_ONCE = 2**21  # numbers that are looked at together
_FORMS = (
    "one variance for each record (n,), one for each entry (n, d1 d2), covariances (n, d1 d2, "
    "d1 d2), or a pair of (n, d1, d1) and (n, d2, d2)"
)


def check_given(estimator: Any, design: Any) -> None:
    """Refuse covariances that the parameters do not ask for, and the other way round."""
    asked = isinstance(estimator.design, str) and estimator.design == RECORDS
    if asked and design is None:
        raise ValueError(
            "design='records' needs the covariances of the records: fit(X, y, design=...), "
            f"{_FORMS}."
        )
    if design is not None and not asked:
        raise ValueError(
            "covariances of single records were passed to fit: set the parameter design='records'. "
            f"Got design={type(estimator.design).__name__!r}."
        )


def with_covariances(placed: Placed, shape: tuple[int, int], design: Any) -> Placed:
    """Return dense records with their covariances beside them, checked."""
    rows, size = placed.rows, math.prod(shape)
    if "factors" in placed.columns or not isinstance(rows, DenseRows) or size > MOST:
        raise ValueError(
            "design='records' needs dense X in memory, of at most "
            f"{MOST} features; give CSR rows, factors and blocks one design for all."
        )
    parts = design if isinstance(design, tuple) else (design,)
    arrays = [_as_numbers(part) for part in parts]
    if any(len(part) != rows.n_rows() for part in arrays):
        raise ValueError("X and design have inconsistent numbers of samples (withheld).")
    if len(arrays) == 2:
        expected = [(d, d) for d in shape]
        fine = all(a.shape[1:] == e for a, e in zip(arrays, expected, strict=True))
        names = COVARIANCES[1:]
    else:
        fine = len(arrays) == 1 and arrays[0].shape[1:] in ((), (size,), (size, size))
        names = COVARIANCES[:1]
    if not fine:
        got = ", ".join(str(("n", *part.shape[1:])) for part in arrays)
        raise ValueError(f"'design' of fit must be {_FORMS}. Got shapes {got}.")
    for part in arrays:
        _check_positive(part)
    return Placed(rows, {**placed.columns, **dict(zip(names, arrays, strict=True))})


def _as_numbers(part: Any) -> Any:
    part = np.asarray(part)
    if part.ndim == 0 or part.dtype.kind not in "fiu":
        raise ValueError(f"'design' of fit must be {_FORMS}.")
    return part.astype(np.float64, copy=False)


def _check_positive(part: Any) -> None:
    """Refuse what is no variance or covariance, a few at a time."""
    at_once = max(1, _AT_ONCE // max(1, math.prod(part.shape[1:])))
    for i in range(0, len(part), at_once):
        some = part[i : i + at_once]
        if some.ndim < 3:
            fine = bool((some > 0).all() and np.isfinite(some).all())
        else:
            fine = bool(np.isfinite(some).all())
            fine = fine and np.allclose(some, some.transpose(0, 2, 1))
            fine = fine and bool(inverses(some)[1].all())
        if not fine:
            raise ValueError(
                "'design' of fit must hold positive variances or symmetric positive definite "
                "covariances, all finite."
            )

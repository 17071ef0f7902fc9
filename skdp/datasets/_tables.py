"""A table with the columns that real ones have: nothing is scaled, centred, or well behaved."""

from __future__ import annotations

from typing import Any

import numpy as np

_KINDS = (
    "dummy_50", "dummy_20", "dummy_5", "dummy_1", "visits", "parts", "amount", "income", "tail",
    "year", "temperature", "ppm", "id", "constant", "zero", "year_copy", "income_copy",
)  # fmt: skip


def make_table(
    n_samples: int = 1000, *, noise: float = 0.5, names: bool = False, random_state: Any = None
) -> Any:
    """Make dummies, counts, amounts with zeros, heavy tails, years, ids, constants and copies.

    The target is linear in the columns a person would keep, in very different units, and far from
    zero: 40,000 and a few thousand.

    Parameters
    ----------
    n_samples : int
        Number of rows.
    noise : float
        Standard deviation of the noise of y, in units of that of the signal.
    names : bool, default=False
        Whether to return the names of the columns.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    X : ndarray of shape (n_samples, 17)
        Columns in their own units.
    y : ndarray of shape (n_samples,)
        Targets.
    names : tuple of str
        Names of the columns, if `names`.

    Examples
    --------
    >>> from skdp.datasets import make_table
    >>> X, y, names = make_table(100, names=True, random_state=0)
    >>> X.shape, y.shape, names[:2]
    ((100, 17), (100,), ('dummy_50', 'dummy_20'))
    """
    rng, n = np.random.default_rng(random_state), n_samples
    columns = {f"dummy_{share}": rng.random(n) < share / 100 for share in (50, 20, 5, 1)}
    columns["visits"] = rng.poisson(0.7, n)
    columns["parts"] = rng.poisson(40, n)
    columns["amount"] = np.where(rng.random(n) < 0.85, 0.0, rng.lognormal(7, 1, n))
    columns["income"] = rng.lognormal(10.4, 0.6, n)
    columns["tail"] = rng.standard_cauchy(n)
    columns["year"] = rng.integers(1950, 2020, n)
    columns["temperature"] = 50 + rng.standard_normal(n)
    columns["ppm"] = 1e-6 * rng.gamma(4.0, size=n)
    columns["id"] = 1e6 + rng.permutation(n)
    columns["constant"], columns["zero"] = np.full(n, 3.0), np.zeros(n)
    columns["year_copy"] = columns["year"] + rng.integers(-1, 2, n)
    columns["income_copy"] = columns["income"] / 12
    X = np.column_stack([columns[kind] for kind in _KINDS]).astype(np.float64)
    signal = (
        columns["dummy_50"] - 0.8 * columns["dummy_20"] + 0.5 * columns["visits"]
        + 0.1 * (columns["parts"] - 40) + 0.04 * (columns["year"] - 1985)
        + 0.8 * (columns["temperature"] - 50) + 3e-5 * columns["income"] + 3e5 * columns["ppm"]
    )  # fmt: skip
    y = signal + noise * signal.std() * rng.standard_normal(n)
    y = 40_000 + 3_000 * y
    return (X, y, _KINDS) if names else (X, y)

"""What plans expect, told what a user may know, in the units of the tables of `matrices.py`."""

import statistics

import numpy as np

_SEEN = 0.01  # a loss that a plan is held to


def near(cells, expected, perfect):
    """Say how far losses are from planned ones, where either can be seen in the table."""
    losses = [perfect - statistics.median(cell) for cell in cells]
    pairs = [(a, perfect - b) for a, b in zip(losses, expected, strict=True)]
    ratios = [a / b for a, b in pairs if max(a, b) > _SEEN]
    return f"Lost, over what is planned: {min(ratios):.2g} to {max(ratios):.2g}." if ratios else ""


def captured(estimator, X, **facts):
    """Return what the plan of a decomposition expects to capture, by epsilon."""
    return lambda e: 1 - estimator.set_params(epsilon=e).plan(*X.shape, **facts).error


def leading_values(X, k):
    """Return the k largest singular values."""
    return np.linalg.svd(X, compute_uv=False)[:k]


def r2(model, X, best):
    """Return what the plan of a regression expects, by epsilon."""
    X = X - X.mean(axis=0)
    facts = {"spectrum": np.maximum(np.linalg.eigvalsh(X.T @ X), 0.0), "signal": best}
    return lambda e: best * (1 - model.set_params(epsilon=e).plan(*X.shape, **facts).error)

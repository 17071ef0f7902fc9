"""What all answers of an iteration say of a matrix together, and how wide a query may be.

Notation: A is m x n. Answers to queries from the right are Y = A Q plus noise, those from the left
Z = A'U plus noise; W holds one over the variance of the noise of each column, t is the variance of
an entry of A before anything is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_SEEN = 6.0  # times the edge of the noise that the weakest direction must stand out of it
_LEAST = 1e-9  # of an answer: noise below it is none


class Sent(NamedTuple):
    """One step of a transcript: query, answer, noise scale."""

    query: FloatArray
    answer: FloatArray
    noise_scale: float


class Shown(NamedTuple):
    """What the last answer of one side shows.

    Attributes
    ----------
    noise : float
        Share of the noise in an entry of it, in the weakest direction that is wanted.
    longest : float
        Squared length of the longest row of its query, which the noise follows.
    shape : tuple of int
        Rows of the query, rows of the answer.
    """

    noise: float
    longest: float
    shape: tuple[int, int]


def more_columns(sides: Sequence[Shown], width: int, most: int, n_left: int) -> int:
    """Return how many random columns can join a query of `width`, at most `most`.

    More of them find more of a spectrum that falls slowly. They make the longest row longer, and
    the edge of the noise follows the width: what is wanted must stay well above it in the mean of
    the answers that are left.
    """
    widths = width + np.arange(1, most + 1)
    fits = np.ones(most, bool)
    for noise, longest, (n_rows, n_answers) in sides:
        louder = 1 + (widths - width) / (n_rows * max(longest, 1e-300))
        signal = n_left * (1 - noise) / max(noise, 1e-300) / louder
        fits &= signal >= _SEEN * np.sqrt(widths / n_answers)
    return int(np.argmin(fits)) if not fits.all() else most


def joint_leading(
    rights: Sequence[Sent], lefts: Sequence[Sent], variance: float, k: int
) -> tuple[FloatArray, FloatArray]:
    """Return the k leading left and right singular vectors of the posterior mean of A.

    The mean solves A QWQ' + UWU' A + A/t = YWQ' + UWZ'; in the eigenvectors of QWQ' and UWU' each
    entry is divided by a number. Beyond the span of the queries it is zero.
    """
    g, B, G = _weighted(lefts)  # of the queries from the left, and their answers
    h, C, H = _weighted(rights)
    inner = (B.T @ H + G.T @ C) / (g[:, None] + h + 1 / variance)
    D, R = np.linalg.qr((H - B @ (B.T @ H)) / (h + 1 / variance))
    E, S = np.linalg.qr((G - C @ (C.T @ G)) / (g + 1 / variance))
    core = np.block([[inner, S.T], [R, np.zeros((len(R), len(S)))]])
    P, _, Q = np.linalg.svd(core)
    left, right = np.hstack([B, D]), np.hstack([C, E])
    return left @ P[:, :k], right @ Q[:k].T


def _weighted(sent: Sequence[Sent]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return eigenpairs (h, C) of QWQ', and YWQ'C."""
    weights = [1 / max(step.noise_scale, _LEAST * _size(step.answer)) for step in sent]
    Q = np.hstack([w * step.query for w, step in zip(weights, sent, strict=True)])
    Y = np.hstack([w * step.answer for w, step in zip(weights, sent, strict=True)])
    C, roots, W = np.linalg.svd(Q, full_matrices=False)
    return roots**2, C, Y @ (W.T * roots)


def _size(answer: FloatArray) -> float:
    return max(float(np.sqrt(np.mean(answer**2))), 1e-290)

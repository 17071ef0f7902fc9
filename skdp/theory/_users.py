"""What user-level votes can show of a shared subspace."""

from __future__ import annotations

import math

_START = 1.0


def vote_error(n_users: float, d: int, k: int, *, noise_scale: float, alignment: float) -> float:
    """Return sin^2 per direction of the subspace that unit votes show.

    Each user adds u u' with ||u|| = 1; a share `alignment` of its square lies in the subspace, the
    rest anywhere. Spike over bulk: theta = n (alignment / k - (1 - alignment) / (d - k)). Noise
    with off-diagonal deviation tau = noise_scale / sqrt(2) and the spread of the votes themselves
    give sin^2 = d (tau^2 + n alignment (1 - alignment) / (k d)) / theta^2.

    Parameters
    ----------
    n_users : float
        Number of users.
    d, k : int
        Features and components.
    noise_scale : float
        Noise of the diagonal of the released sum.
    alignment : float
        Share of a vote inside the subspace.

    Returns
    -------
    float
    """
    if k >= d:
        return 0.0
    theta = n_users * (alignment / k - (1 - alignment) / (d - k))
    if theta <= 0:
        return 1 - k / d
    variance = noise_scale**2 / 2 + n_users * alignment * (1 - alignment) / (k * d)
    return min(_START * d * variance / theta**2, 1 - k / d)


def vote_threshold(d: int, k: int, *, noise_scale: float, alignment: float) -> float:
    """Return the number of users from which the subspace stands out of the noise of the votes."""
    gap = alignment / k - (1 - alignment) / max(d - k, 1)
    return math.inf if gap <= 0 else noise_scale * math.sqrt(d) / gap

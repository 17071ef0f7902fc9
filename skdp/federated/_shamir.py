"""Shamir's secret sharing of 256-bit secrets over the integers modulo a prime.

Fewer than `threshold` shares are independent of the secret; that many give it back. All shares
have the same length, whatever they hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Final

from skdp.federated._errors import MessageRefused

PRIME: Final = 2**256 + 297  # the smallest prime above all secrets
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_DRAW_BYTES: Final = 48  # 384 bits modulo a 257-bit prime: uniform but for 2^-127


def split(secret: bytes, n_parts: int, threshold: int) -> list[bytes]:
    """Return the shares at 1..n_parts; any `threshold` of them give the secret back."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= n_parts:
        raise ValueError("A secret has 32 bytes, and a threshold lies in 1..n_parts.")
    draws = os.urandom(_DRAW_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(draws[i : i + _DRAW_BYTES], "little") % PRIME
        for i in range(0, len(draws), _DRAW_BYTES)
    ]
    coefficients.append(int.from_bytes(secret, "little"))  # the constant term comes last
    return [_evaluate(coefficients, x) for x in range(1, n_parts + 1)]


def _evaluate(coefficients: list[int], x: int) -> bytes:
    value = 0
    for coefficient in coefficients:  # x is small: one reduction at the end is enough
        value = value * x + coefficient
    return (value % PRIME).to_bytes(SHARE_BYTES, "little")


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from the first `threshold` of the shares, by their positions."""
    points = tuple(sorted(shares)[:threshold])
    if len(points) < threshold:
        raise MessageRefused(f"{len(points)} shares of {threshold} are not enough.")
    values = [int.from_bytes(shares[x], "little") for x in points]
    value = sum(w * v for w, v in zip(_weights(points), values, strict=True)) % PRIME
    if max(values) >= PRIME or value >> (8 * SECRET_BYTES):
        raise MessageRefused("The shares do not belong together.")
    return value.to_bytes(SECRET_BYTES, "little")


@lru_cache(maxsize=4096)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights at zero: the product over the others of x_j / (x_j - x_i)."""
    weights = []
    for i in points:
        others = [j for j in points if j != i]
        below = prod(j - i for j in others)
        weights.append(prod(others) * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)

"""Draws per second on one core: ``python benchmarks/noise.py``.

Words are included. numpy's float Gaussian is the yardstick, not an option: it is not private.
"""

import time

import numpy as np
from report import show, shown

from skdp.privacy.noise.integers import gumbel_choice, integer_gaussian, integer_laplace
from skdp.privacy.noise.words import SeededSource, SystemSource

N = 1 << 19
REPEATS = 5


def rate(call, n):
    """Return calls per second in millions: n draws, the best of some repeats."""
    call()
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return n / best / 1e6


def main():
    generator = np.random.default_rng()
    scores = generator.integers(0, 1 << 40, 1000)
    system, seeded = SystemSource().words("benchmark"), SeededSource(0).words("benchmark")
    rows = [("numpy standard_normal (float, PCG64)", lambda: generator.standard_normal(N), N)]
    for label, words in [("operating system", system), ("seeded", seeded)]:
        rows += [
            (f"{label}: 64-bit words", lambda w=words: [w(8192) for _ in range(N // 8192)], N),
            (f"{label}: integer Gaussian, 4 levels", lambda w=words: integer_gaussian(w, (N,)), N),
            (
                f"{label}: integer Gaussian, 3 levels",
                lambda w=words: integer_gaussian(w, (N,), 3),
                N,
            ),
            (f"{label}: integer Laplace", lambda w=words: integer_laplace(w, (N,)), N),
            (
                f"{label}: choice, candidates (1000 a call)",
                lambda w=words: gumbel_choice(w, scores, 1e-10),
                1000,
            ),
        ]
    rates = [rate(call, n) for _, call, n in rows]
    cells = [
        [label, f"{each:.3f}", f"{rates[0] / each:.1f}"]
        for (label, _, _), each in zip(rows, rates, strict=True)
    ]
    title = "noise, best of 5"
    show(title, ["source", "million per second", "time over the first line"], cells)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    return shown(main)


if __name__ == "__main__":
    main()

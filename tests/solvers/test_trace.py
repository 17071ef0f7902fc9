"""The descent on synthetic answers: no data, no gate."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers import trace
from skdp.solvers.trace import TraceFacts
from tools.gate import Noisy


class Exact(Noisy):
    """Sums of Gaussian records with a median length of their own, and `noise` on each total."""

    def __init__(self, M, sd, noise=0.0, rank_noise=0.0, seed=0):
        super().__init__(noise, seed)
        self.M, self.sd, self.rank_noise, self.n = M, sd, rank_noise, 10_000

    def products(self):
        return Sum(self, -self.M, None)

    def tangent(self, U, S, V, intercept=0.0):
        return Sum(self, U @ S @ V.T - self.M, (U, V))


class Sum:
    def __init__(self, ask, error, bases):
        self.ask, self.error, self.bases = ask, error, bases
        d1, d2 = error.shape
        q = d1 * d2 if bases is None else bases[0].shape[1] * (d1 + d2 - bases[0].shape[1])
        spread = math.hypot(ask.sd, np.linalg.norm(error))
        self.median = 0.6745 * spread * math.sqrt(q)

    def scores_below(self, threshold, *, share):
        self.ask.shares.append(share)
        return Answer(math.copysign(1.0, threshold - self.median), self.ask.rank_noise)

    def total(self, clip_level, *, share):
        n = self.ask.n * trace.bussgang(clip_level / self.median)
        if self.bases is None:
            value = (-self.error * n).ravel()
        else:
            U, V = self.bases
            left = U.T @ self.error
            value = n * np.concatenate([(self.error @ V).ravel(), (left - left @ V @ V.T).ravel()])
        return self.ask.noisy(value, share, self.ask.noise * clip_level)


def low_rank(d1=8, d2=6, values=(3.0, 1.0), seed=1):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((d, len(values))))[0] for d in (d1, d2))
    return (U * np.array(values)) @ V.T


def plan(M, rank=2, **kwargs):
    defaults = {"shape": M.shape, "rank": rank, "n": 10_000.0, "lam": 1.0, "unit_noise": 1.0}
    defaults |= {"init": 0.2, "gradients": 0.7, "rank_share": 0.001}
    return TraceFacts(**(defaults | kwargs))


def matrix(fit):
    return (fit.U * fit.values) @ fit.V.T


def test_shares_are_what_was_planned():
    M = low_rank()
    ask = Exact(M, 1.0, noise=30.0)  # steps that are all noise are never the last
    for target_sd in (0.0, 3.0):
        ask.shares.clear()
        ranks = trace.median_steps(8, centered=target_sd > 0, searches_covariance=False)
        trace.fit_trace(ask, plan(M, rank_share=0.1 / ranks, target_sd=target_sd))
        assert math.fsum(ask.shares) == pytest.approx(1.0)


def test_unreadable_ranks_give_zero_at_once():
    M = low_rank()
    ask = Exact(M, 1.0, rank_noise=4000.0)
    fit = trace.fit_trace(ask, plan(M))
    assert "median" in fit.zero_because
    assert len(ask.shares) == 1
    assert not matrix(fit).any()


@pytest.mark.parametrize(("sd", "max_iter", "limit"), [(0.1, 12, 0.05), (10.0, 8, 0.15)])
def test_steps_that_go_too_far_are_shortened(sd, max_iter, limit):
    """Records of another design than what was learnt: whole steps go three times too far.

    Next to residuals of 10 lengths do not show that. Their sampling error is .155 of the matrix.
    """
    M = low_rank()

    class Steep(Exact):
        def tangent(self, U, S, V, intercept=0.0):
            out = Sum(self, U @ S @ V.T - self.M, (U, V))
            once = out.total
            out.total = lambda level, *, share: Answer(3 * once(level, share=share).value, 0.0)
            return out

    fit = trace.fit_trace(Steep(M, sd), plan(M, max_iter=max_iter, shrink=False))
    assert np.linalg.norm(matrix(fit) - M) < limit * np.linalg.norm(M)


def test_a_matrix_of_blocks_does_not_start_at_a_saddle():
    """Records of nested factors: an entry each, of one of four blocks; one rank fits them all."""
    seen = np.kron(np.eye(4), np.ones((1, 3)))

    class Nested(Exact):
        def tangent(self, U, S, V, intercept=0.0):
            return Sum(self, (U @ S @ V.T - self.M) * seen, (U, V))

    M = seen * np.linspace(1, 2, 12)
    fit = trace.fit_trace(Nested(M, 0.3), plan(M, 1, max_iter=24, shrink=False))
    assert np.linalg.norm((matrix(fit) - M) * seen) < 0.05 * np.linalg.norm(M)


def test_retraction_is_the_truncated_svd(rng):
    for d1, d2, r in ((7, 5, 2), (5, 7, 2), (3, 3, 2), (4, 1, 1), (1, 1, 1)):
        U, V = (np.linalg.qr(rng.standard_normal((d, r)))[0] for d in (d1, d2))
        S, right = rng.standard_normal((r, r)), rng.standard_normal((d1, r))
        left = rng.standard_normal((r, d2))
        left -= left @ V @ V.T
        P, s, Qt = np.linalg.svd(U @ S @ V.T + right @ V.T + U @ left)
        A, values, B = trace.retract(U, S, V, right, left)
        assert np.allclose((A * values) @ B.T, (P[:, :r] * s[:r]) @ Qt[:r])
        assert np.allclose(A.T @ A, np.eye(r))


def test_shrinkage_kills_noise_and_keeps_signal(rng):
    noise = rng.standard_normal((60, 40))
    values = np.linalg.svd(noise, compute_uv=False)
    assert not trace.shrink(values, 1.1, (60, 40)).any()
    seen = np.linalg.svd(40 * low_rank(60, 40, (1.0,)) + noise, compute_uv=False)[:1]
    shrunk = trace.shrink(seen, 1.0, (60, 40))
    assert shrunk < seen
    assert shrunk == pytest.approx(40 * 0.97, rel=0.06)
    assert np.array_equal(trace.shrink(values, 0.0, (60, 40)), values)


@pytest.mark.deep
@pytest.mark.parametrize("shape", [(1, 1), (15, 1), (8, 8), (60, 5), (40, 30)])
def test_noise_goes_beyond_its_edge_once_in_a_hundred_matrices(shape):
    """4000 matrices: five deviations of that count are 31. The edge itself is 4 to 20% of them."""
    G = np.random.default_rng(0).standard_normal((4000, *shape))
    largest = np.linalg.norm(G, 2, axis=(1, 2)) / sum(math.sqrt(d) for d in shape)
    assert 9 <= np.count_nonzero(largest > trace.largest_of_noise(shape)) <= 71
    assert np.count_nonzero(largest > 1) > 4 * 31


def test_clip_multiplier_balances_sampling_and_noise():
    M = low_rank()
    assert trace.clip_multiplier(plan(M, unit_noise=1e4), 20, 0.7) == 0.4
    assert trace.clip_multiplier(plan(M, unit_noise=0.0), 20, 0.7) == 4.0
    assert trace.clip_multiplier(plan(M, clip_level=1.3), 20, 0.7, 50.0) == 1.3
    # Next to rare targets, whose medians are small, it is larger as far as noise allows.
    half = 10_000 * math.sqrt(0.7 * 0.002) / (2.0 * 0.6745 * 20)
    for noise, c in ((0.0, 4 * 50.0), (half, 2 * 50.0), (1e4, 0.4)):
        found = trace.clip_multiplier(plan(M, unit_noise=noise), 20, 0.7, 50.0)
        assert found == pytest.approx(c, rel=1e-4)
    g = np.abs(np.random.default_rng(3).standard_normal(400_000))
    for c in (0.5, 1.0, 3.0):
        assert trace.bussgang(c) == pytest.approx(np.mean(g < 0.6745 * c), abs=5e-3)
        clipped = np.mean(np.minimum(g, 0.6745 * c) ** 2)
        assert trace._clipped_variance(c) == pytest.approx(clipped, abs=5e-3)


def test_private_medians_are_found_to_a_tenth():
    for median in (1e-9, 0.013, 1.0, 7.5, 3e9):
        asked = []

        def below(threshold, *, share, median=median, asked=asked):
            asked.append(share)
            return Answer(50.0 if threshold >= median else -50.0, 0.1)

        assert 0.9 <= trace.private_median(below, 0.01, 100.0, ()) / median < 1.1
        again = trace.private_median(below, 0.01, 100.0, (0.6 * median, 1.7 * median))
        assert 0.93 <= again / median < 1.07
        assert len(asked) == trace.median_steps(1, centered=False, searches_covariance=False) - 3

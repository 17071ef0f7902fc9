"""The mean of a matrix given all answers of both sides, and how many columns join a query."""

import math

import numpy as np
import pytest

from skdp.solvers.iterate import Sent, Shown, joint_leading, more_columns


def cosines(A, B):
    return np.linalg.svd(A.T @ B)[1]


@pytest.mark.parametrize(("widths", "noise"), [((2, 3), 0.5), ((4, 9), 0.05), ((2, 3), 1e-3)])
def test_the_joint_mean_is_that_of_the_regression_on_all_entries(widths, noise):
    """Against ordinary ridge regression of the entries, one equation for each number released."""
    rng = np.random.default_rng(0)
    m, n, k = 12, 9, 2
    A = rng.standard_normal((m, k)) * 5 @ rng.standard_normal((k, n)) + rng.standard_normal((m, n))
    rows, answers = [], []

    def sent(B, size, from_left):
        steps = []
        for scale in (noise, 2 * noise):
            Q = rng.standard_normal((B.shape[1], size))
            Y = B @ Q + scale * rng.standard_normal((len(B), size))
            entries = np.eye(m * n).reshape(m, n, -1)
            told = np.einsum("mnx,mq->nqx" if from_left else "mnx,nq->mqx", entries, Q)
            rows.append(told.reshape(-1, m * n) / scale)
            answers.append(Y.reshape(-1) / scale)
            steps.append(Sent(Q, Y, scale))
        return steps

    rights, lefts = sent(A, widths[0], False), sent(A.T, widths[1], True)
    R, y = np.vstack(rows), np.hstack(answers)
    mean = np.linalg.solve(R.T @ R + np.eye(m * n) / 4.0, R.T @ y).reshape(m, n)
    U, _, V = np.linalg.svd(mean)
    found = joint_leading(rights, lefts, 4.0, k)
    assert cosines(found[0], U[:, :k]).min() > 1 - 1e-6
    assert cosines(found[1], V[:k].T).min() > 1 - 1e-6


def test_answers_without_noise_are_exact():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((20, 15))
    V, U = np.eye(15), np.linalg.qr(rng.standard_normal((20, 3)))[0]
    found = joint_leading([Sent(V, A, 0.0)], [Sent(U, A.T @ U, 0.0)], 1.0, 4)
    exact = np.linalg.svd(A)
    assert cosines(found[0], exact[0][:, :4]).min() > 1 - 1e-8
    assert cosines(found[1], exact[2][:4].T).min() > 1 - 1e-8


def test_more_columns_join_as_noise_falls():
    def joined(noise, longest=0.05, most=150):
        sides = [Shown(noise, longest, (200, 800)), Shown(noise, longest, (800, 200))]
        return more_columns(sides, 5, most, 5)

    counts = [joined(noise) for noise in (1.0, 0.9, 0.5, 0.1, 0.01, 0.0)]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 150
    assert joined(0.3, longest=0.01) < joined(0.3, longest=0.5)  # rows are long as they are
    assert joined(0.0, most=0) == 0


def test_what_is_wanted_stays_above_the_edge_of_the_noise():
    """At the count that is returned, and not with one more."""
    side = Shown(0.2, 0.05, (200, 800))
    more = more_columns([side], 5, 190, 4)

    def ratio(e):
        return 4 * (0.8 / 0.2) / (1 + e / (200 * 0.05)) / math.sqrt((5 + e) / 800)

    assert 0 < more < 190
    assert ratio(more) >= 6.0 > ratio(more + 1)

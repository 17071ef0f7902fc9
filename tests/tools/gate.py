"""Sessions of the gate, and answers that are known."""

import numpy as np

from skdp.answer import Answer
from skdp.privacy.accounting.losses import epsilon_from_mu_delta
from skdp.privacy.gate.bounds import Bound, Bounded, PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise.words import SeededSource, SystemSource

VECTOR = Bound("vector", (4,), 2.0, slack=0.0, l1=3.0, l1_slack=0.0)


def new_session(
    epsilon=1.0, delta=1e-6, pure=0.0, *, split=False, source=None,
    adjacency="add_remove", unit="row", observer=None,
):  # fmt: skip
    budget = PrivacyBudget(epsilon, delta, pure, split=split)
    return PrivacySession(
        budget, source=source or SystemSource(), adjacency=adjacency, unit=unit, observer=observer
    )


def constant(bound, value=0):
    def answer(step):
        return np.full(bound.shape, value, np.int64 if step else np.float64)

    return Bounded(bound, answer)


def change_over_bound(one, other, step=None):
    """Return how far the answers to neighbours lie apart, in units of what is claimed."""
    step = step or one.bound.l2 / 2e8
    moved = np.subtract(one.answer(step), other.answer(step)).astype(float)
    return float(np.linalg.norm(moved)) / one.bound.l2_steps(step)


def asked(query, noise, seed=0):
    """Return an ask of a query, whose budget has this multiplier of noise, and what it spends."""
    session = new_session(epsilon_from_mu_delta(1 / noise, 1e-6), source=SeededSource(seed))
    return session.ask(query), session


def shares_of(session):
    """Return (name, share of the budget) of each release."""
    whole = session.mu(1.0) ** 2
    return [(line.name, line.loss.value**2 / whole) for line in session.ledger]


class Noisy:
    """Something to ask, whose answers a test makes up; it keeps the shares that were spent."""

    def __init__(self, noise=0.0, seed=0):
        self.noise, self.rng, self.shares = noise, np.random.default_rng(seed), []

    def noisy(self, value, share, scale):
        self.shares.append(share)
        return Answer(value + scale * self.rng.standard_normal(np.shape(value)), scale)


class Matrix(Noisy):
    """Products with A; the noise grows with the longest row of the query, as for one entry."""

    def __init__(self, A, noise=0.0, seed=0):
        super().__init__(noise, seed)
        self.A, self.queries = A, []

    def right(self, X, *, share):
        self.queries.append(X)
        longest = np.linalg.norm(X, axis=1).max()
        return self.noisy(self.A @ X, share, self.noise * longest / np.sqrt(share))

    def left(self, U, *, share):
        self.A = self.A.T
        answer = self.right(U, share=share)
        self.A = self.A.T
        return answer

    def ritz(self, X, *, share):
        return self.noisy(X.T @ self.A @ X, share, 0.0)

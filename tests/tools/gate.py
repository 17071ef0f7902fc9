"""Sessions of the gate, and answers that are known."""

import numpy as np

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


def asked(query, noise, seed=0):
    """Return an ask of a query, whose budget has this multiplier of noise, and what it spends."""
    session = new_session(epsilon_from_mu_delta(1 / noise, 1e-6), source=SeededSource(seed))
    return session.ask(query), session


def shares_of(session):
    """Return (name, share of the budget) of each release."""
    whole = session.mu(1.0) ** 2
    return [(line.name, line.loss.value**2 / whole) for line in session.ledger]

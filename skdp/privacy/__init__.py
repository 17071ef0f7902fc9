"""Privacy accounting, noise, and the gate through which every release goes."""

from skdp.privacy.accounting import (
    Loss,
    delta_from_mu_epsilon,
    epsilon_from_mu_delta,
    mu_from_epsilon_delta,
)
from skdp.privacy.budget import PrivacyBudget
from skdp.privacy.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.session import (
    Accumulator,
    Answer,
    Ask,
    Bound,
    Bounded,
    Grant,
    PrivacySession,
    Stream,
)

__all__ = [
    "Accumulator",
    "Answer",
    "Ask",
    "Bound",
    "Bounded",
    "Grant",
    "LedgerEntry",
    "Loss",
    "PrivacyBudget",
    "PrivacySession",
    "PrivacySpent",
    "Stream",
    "delta_from_mu_epsilon",
    "epsilon_from_mu_delta",
    "mu_from_epsilon_delta",
]

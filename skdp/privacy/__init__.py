"""Privacy accounting, noise, and the gate through which every release goes."""

from skdp.answer import Answer
from skdp.privacy.accounting.losses import (
    Loss,
    delta_from_mu_epsilon,
    epsilon_from_mu_delta,
    mu_from_epsilon_delta,
)
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate.bounds import Ask, Bound, Bounded, PrivacyBudget
from skdp.privacy.gate.session import Accumulator, Grant, PrivacySession
from skdp.privacy.streams.continual import Stream

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

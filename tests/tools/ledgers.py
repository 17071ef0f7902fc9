"""What tests of ledgers fit and charge."""

from contextlib import contextmanager

import numpy as np

from skdp import DPPCA, PrivacyLedger
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.ledger.fits import LedgerFit

X = np.random.default_rng(0).standard_normal((200, 3)) / 3


def pca(epsilon=0.5, **parameters):
    return DPPCA(1, clip_norm=1.0, epsilon=epsilon, **parameters)


@contextmanager
def forgiving(*budget, **terms):
    """Open a ledger that forgets the refusals inside."""
    with PrivacyLedger(*budget, **terms) as ledger:
        yield ledger
        ledger._refused.clear()


def mu_of(epsilon, delta=1e-6):
    return PrivacyBudget(epsilon, delta).mu


def fit_of(*losses, unit="row", adjacency="add_remove", **parameters):
    return LedgerFit("Fit", unit, adjacency, losses, False, **parameters)


def gaussian_fit(mu, **parameters):
    return fit_of(Loss("gaussian", mu), **parameters)

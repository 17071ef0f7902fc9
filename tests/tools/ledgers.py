"""What tests of ledgers fit and charge."""

from contextlib import contextmanager

import numpy as np
from sklearn.model_selection import GridSearchCV

from skdp import DPPCA, PrivacyLedger
from skdp.model_selection import make_private_scorer
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.ledger.fits import LedgerFit

X = np.random.default_rng(0).standard_normal((200, 3)) / 3
SCORER = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=0.3)
REPLACE = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=0.3, adjacency="replace")


def pca(epsilon=0.5, **parameters):
    return DPPCA(1, clip_norm=1.0, epsilon=epsilon, **parameters)


def grid(cv, estimator=None, **params):
    estimator = pca(adjacency="replace") if estimator is None else estimator
    return GridSearchCV(estimator, {"n_components": [1, 2, 3]}, cv=cv, **params)


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


def attempt(task=None):
    """Run a task, or build an estimator from nothing; say what became of it (see below).

    Whatever the error is: nobody waits for a child that has died.
    """
    import numpy

    from skdp import DPPCA

    try:
        (task or DPPCA(1, clip_norm=1.0).fit)(numpy.ones((50, 3)))
    except Exception as error:
        return str(error)
    return "fitted"


attempt.__module__ = "__main__"  # then it is sent by value: workers have not this module

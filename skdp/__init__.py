"""Differentially private low-rank matrix estimation for scikit-learn."""

from skdp.decomposition import DPPCA, DPIncrementalPCA, DPLowRankFactorizer, DPTruncatedSVD
from skdp.exceptions import (
    BudgetExceededError,
    PrivacyError,
    PrivacyUnitWarning,
    PrivacyWarning,
)
from skdp.graph import DPSpectralEmbedding
from skdp.privacy.ledger import PrivacyLedger
from skdp.privacy.receipts import PrivacySpent
from skdp.regression import (
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPTraceRegressor,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "DPPCA",
    "DPIncrementalPCA",
    "DPLowRankFactorizer",
    "DPPersonalizedClassifier",
    "DPPersonalizedRegressor",
    "DPSpectralEmbedding",
    "DPTraceRegressor",
    "DPTruncatedSVD",
    "BudgetExceededError",
    "PrivacyError",
    "PrivacyLedger",
    "PrivacySpent",
    "PrivacyUnitWarning",
    "PrivacyWarning",
]

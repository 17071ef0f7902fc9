"""Differentially private low-rank matrix estimation for scikit-learn."""

from skdp import model_selection
from skdp._support import show_versions, skops_types
from skdp.base import PrintProgress
from skdp.decomposition import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPScoreDensity,
    DPTruncatedSVD,
)
from skdp.exceptions import BudgetExceededError, PrivacyError, PrivacyUnitWarning, PrivacyWarning
from skdp.graph import DPSpectralEmbedding
from skdp.model_selection import check_pipeline
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.ledger.ledger import PrivacyLedger
from skdp.regression import (
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "DPPCA",
    "DPIncrementalPCA",
    "DPLowRankFactorizer",
    "DPPersonalizedClassifier",
    "DPPersonalizedRegressor",
    "DPRidge",
    "DPRidgeClassifier",
    "DPScoreDensity",
    "DPSpectralEmbedding",
    "DPStandardScaler",
    "DPTraceRegressor",
    "DPTruncatedSVD",
    "BudgetExceededError",
    "PrintProgress",
    "PrivacyError",
    "PrivacyLedger",
    "PrivacySpent",
    "PrivacyUnitWarning",
    "PrivacyWarning",
    "check_pipeline",
    "model_selection",
    "skops_types",
    "show_versions",
]

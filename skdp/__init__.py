"""Differentially private low-rank matrix estimation for scikit-learn."""

from skdp import model_selection
from skdp._support import show_versions
from skdp.decomposition import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPScoreDensity,
    DPTruncatedSVD,
)
from skdp.exceptions import (
    BudgetExceededError,
    NoSignalWarning,
    PartialSignalWarning,
    PrivacyError,
    PrivacyUnitWarning,
    PrivacyWarning,
    UtilityWarning,
)
from skdp.graph import DPSpectralEmbedding
from skdp.model_selection import (
    DPGridSearchCV,
    DPRandomizedSearchCV,
    check_pipeline,
    make_private_scorer,
)
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.ledger.ledger import PrivacyLedger
from skdp.recommend import DPRecommender
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
    "DPGridSearchCV",
    "DPIncrementalPCA",
    "DPLowRankFactorizer",
    "DPPersonalizedClassifier",
    "DPPersonalizedRegressor",
    "DPRandomizedSearchCV",
    "DPRecommender",
    "DPRidge",
    "DPRidgeClassifier",
    "DPScoreDensity",
    "DPSpectralEmbedding",
    "DPStandardScaler",
    "DPTraceRegressor",
    "DPTruncatedSVD",
    "BudgetExceededError",
    "NoSignalWarning",
    "PartialSignalWarning",
    "PrivacyError",
    "PrivacyLedger",
    "PrivacySpent",
    "PrivacyUnitWarning",
    "PrivacyWarning",
    "PublicScaler",
    "RowClipper",
    "UtilityWarning",
    "check_pipeline",
    "make_private_scorer",
    "model_selection",
    "show_versions",
]

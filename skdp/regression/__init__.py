"""Private regression: linear regression, low-rank matrices, models shared by many users."""

from skdp.regression._personalized import DPPersonalizedRegressor, QuantileLoss
from skdp.regression._personalized_classifier import DPPersonalizedClassifier
from skdp.regression._ridge import DPRidge
from skdp.regression._ridge_classifier import DPRidgeClassifier
from skdp.regression._trace import DPTraceRegressor

__all__ = [
    "DPPersonalizedClassifier",
    "DPPersonalizedRegressor",
    "DPRidge",
    "DPRidgeClassifier",
    "DPTraceRegressor",
    "QuantileLoss",
]

"""Splitting, searching and checking with privacy in mind."""

from skdp.model_selection._pipelines import check_pipeline
from skdp.model_selection._report import PipelineProblem, PipelineReport
from skdp.model_selection._scorers import make_private_scorer
from skdp.model_selection._search import DPGridSearchCV, DPRandomizedSearchCV
from skdp.model_selection._splitters import WithinGroupKFold

__all__ = [
    "DPGridSearchCV",
    "DPRandomizedSearchCV",
    "PipelineProblem",
    "PipelineReport",
    "WithinGroupKFold",
    "check_pipeline",
    "make_private_scorer",
]

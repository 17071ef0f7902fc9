"""Splitting, searching and checking with privacy in mind."""

from skdp.model_selection._cost import SearchCost, search_cost
from skdp.model_selection._pipelines import (
    PipelineProblem,
    PipelineReport,
    check_pipeline,
    with_budget,
)
from skdp.model_selection._scorers import PrivateScorer, make_private_scorer
from skdp.model_selection._search import DPGridSearchCV, DPRandomizedSearchCV
from skdp.model_selection._splitters import IndependentKFold, WithinGroupKFold, split_interactions

__all__ = [
    "DPGridSearchCV",
    "DPRandomizedSearchCV",
    "IndependentKFold",
    "PipelineProblem",
    "PipelineReport",
    "PrivateScorer",
    "SearchCost",
    "WithinGroupKFold",
    "check_pipeline",
    "split_interactions",
    "make_private_scorer",
    "search_cost",
    "with_budget",
]

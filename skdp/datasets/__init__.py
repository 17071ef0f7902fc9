"""Synthetic data sets in the shapes that the estimators are for. Nothing here is private."""

from skdp.datasets._made import (
    make_block_graph,
    make_interactions,
    make_ratings,
    make_spiked_rows,
    make_table,
    make_trace_regression,
    make_user_items,
    make_user_tasks,
)

__all__ = [
    "make_block_graph",
    "make_user_items",
    "make_interactions",
    "make_ratings",
    "make_spiked_rows",
    "make_table",
    "make_trace_regression",
    "make_user_tasks",
]

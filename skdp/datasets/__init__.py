"""Public data in the shapes that the estimators are for: synthetic, or fetched from their owners.

Nothing here is private, and no data set is part of the package: the `fetch_` functions download
from the owner, under the owner's licence.
"""

from skdp.datasets._fetch import fetch_movielens
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
    "fetch_movielens",
    "make_block_graph",
    "make_user_items",
    "make_interactions",
    "make_ratings",
    "make_spiked_rows",
    "make_table",
    "make_trace_regression",
    "make_user_tasks",
]

"""Public data in the shapes that the estimators are for: synthetic, or fetched from their owners.

Nothing here is private, and no data set is part of the package: the `fetch_` functions download
from the owner, under the owner's licence.
"""

from skdp.datasets._factors import (
    make_histories,
    make_interactions,
    make_ratings,
    make_spiked_rows,
)
from skdp.datasets._fetch import fetch_movielens, fetch_snap_graph
from skdp.datasets._graphs import make_block_graph
from skdp.datasets._regression import make_trace_regression, make_user_tasks
from skdp.datasets._streams import make_event_stream
from skdp.datasets._tables import make_table

__all__ = [
    "fetch_movielens",
    "fetch_snap_graph",
    "make_block_graph",
    "make_event_stream",
    "make_histories",
    "make_interactions",
    "make_ratings",
    "make_spiked_rows",
    "make_table",
    "make_trace_regression",
    "make_user_tasks",
]

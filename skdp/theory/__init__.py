"""What theory says before a fit: expected noise and error, records needed, lower bounds."""

from skdp.theory._fits import (
    deviation_error,
    factorization_error,
    factorization_threshold,
    readout_loss,
)
from skdp.theory._plan import FitPlan, PlannedRelease, planned
from skdp.theory._streams import planned_sketches, planned_stream
from skdp.theory._subspaces import (
    gram_loss,
    iteration_error,
    iteration_threshold,
    moment_edge,
    power_loss,
)
from skdp.theory._trace import (
    RecordsNeeded,
    expected_error,
    initialization_records,
    minimax_error,
    minimax_risk,
    records_needed,
)
from skdp.theory._users import vote_error, vote_threshold

__all__ = [
    "FitPlan",
    "PlannedRelease",
    "RecordsNeeded",
    "deviation_error",
    "expected_error",
    "factorization_error",
    "factorization_threshold",
    "gram_loss",
    "initialization_records",
    "iteration_error",
    "iteration_threshold",
    "minimax_error",
    "minimax_risk",
    "moment_edge",
    "planned",
    "planned_sketches",
    "planned_stream",
    "power_loss",
    "readout_loss",
    "records_needed",
    "vote_error",
    "vote_threshold",
]

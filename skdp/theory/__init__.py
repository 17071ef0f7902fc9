"""What theory says before a fit: expected noise and error, records needed, lower bounds."""

from skdp.theory._descent import (
    DescentRecords,
    StartBounds,
    descent_error_bound,
    descent_records,
    private_start_records,
    start_bounds,
)
from skdp.theory._fits import (
    deviation_error,
    factorization_error,
    factorization_threshold,
    falling_spectrum,
    readout_loss,
    weighted_rows,
)
from skdp.theory._plan import Expectation, FitPlan, PlannedRelease, check_counts, constant_error
from skdp.theory._power import (
    Coherence,
    independent_sensitivity,
    power_error_bound,
    power_steps,
    prior_sensitivity,
    recovery_bound,
    sensitivity_ratio,
    subspace_coherence,
)
from skdp.theory._rehearsal import Rehearsal, last_noise, rehearse, zero_rows
from skdp.theory._scales import scale_doubt, searched_error
from skdp.theory._subspaces import (
    IteratedSide,
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
    "Coherence",
    "DescentRecords",
    "Expectation",
    "FitPlan",
    "IteratedSide",
    "PlannedRelease",
    "RecordsNeeded",
    "Rehearsal",
    "StartBounds",
    "check_counts",
    "descent_error_bound",
    "descent_records",
    "deviation_error",
    "expected_error",
    "factorization_error",
    "factorization_threshold",
    "gram_loss",
    "independent_sensitivity",
    "initialization_records",
    "iteration_error",
    "iteration_threshold",
    "last_noise",
    "minimax_error",
    "minimax_risk",
    "moment_edge",
    "power_error_bound",
    "power_loss",
    "power_steps",
    "prior_sensitivity",
    "recovery_bound",
    "sensitivity_ratio",
    "start_bounds",
    "subspace_coherence",
    "falling_spectrum",
    "readout_loss",
    "scale_doubt",
    "searched_error",
    "records_needed",
    "rehearse",
    "vote_error",
    "vote_threshold",
    "weighted_rows",
    "constant_error",
    "zero_rows",
    "private_start_records",
]

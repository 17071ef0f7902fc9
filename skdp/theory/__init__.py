"""Predictions before a fit: plans on synthetic data, required sample sizes, error bounds."""

from skdp.theory._plan import FitPlan, PlanData, PlannedRelease, PlansMixin
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
from skdp.theory._trace import (
    DescentRecords,
    RequiredSamples,
    StartBounds,
    descent_error_bound,
    descent_records,
    initialization_records,
    minimax_error,
    minimax_risk,
    private_start_records,
    required_samples,
    start_bounds,
)

__all__ = [
    "Coherence",
    "DescentRecords",
    "FitPlan",
    "PlanData",
    "PlannedRelease",
    "PlansMixin",
    "RequiredSamples",
    "StartBounds",
    "descent_error_bound",
    "descent_records",
    "independent_sensitivity",
    "initialization_records",
    "minimax_error",
    "minimax_risk",
    "power_error_bound",
    "power_steps",
    "prior_sensitivity",
    "private_start_records",
    "required_samples",
    "recovery_bound",
    "sensitivity_ratio",
    "start_bounds",
    "subspace_coherence",
]

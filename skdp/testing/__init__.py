"""Tools to check that an estimator keeps its privacy promise: for this package and for your own."""

from skdp.testing._data import FitData, contrasting_data, register_data
from skdp.testing._hooks import (
    Opening,
    Transcript,
    fixed_noise,
    null_release,
    record_transcript,
    replay_answers,
)
from skdp.testing._neighbours import Neighbours, register_neighbours
from skdp.testing._pairs import candidate_pairs, register_pairs
from skdp.testing._statistics import (
    distribution_free_mu,
    epsilon_lower_bound,
    gaussian_mu,
    runs_needed,
)
from skdp.testing.audit import (
    AuditReport,
    CalibrationReport,
    StepAudit,
    TranscriptReport,
    audit,
    calibration,
    check_calibration,
    transcript_audit,
    worst_case_pair,
)
from skdp.testing.sensitivity import (
    SensitivityReport,
    check_lazy,
    check_order_invariance,
    check_sensitivity,
)
from skdp.testing.checks import dp_estimator_checks, parametrize_with_dp_checks

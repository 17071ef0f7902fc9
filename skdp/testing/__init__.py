"""Tools to check that an estimator keeps its privacy promise: for this package and for your own.

Three tiers, sharpest first:

- `check_sensitivity` attacks the claimed sensitivity of a query with hostile neighbours. No noise.
- `transcript_audit` and `check_calibration` look at everything that passed the gate in one fit.
- `audit` repeats fits and bounds the privacy parameter from below with confidence. The canaries
  (`coherence_canary`, `score_attack`) are the attacks behind the lower bounds of two papers.

`dp_estimator_checks` runs what applies to any estimator; the checks themselves are in
`skdp.testing.checks`. Everything here sees exact private answers: for tests, never in production.
"""

from skdp.testing._calibration import CalibrationReport, calibration, check_calibration
from skdp.testing._canaries import (
    CanaryReport,
    canary_report,
    coherence_canary,
    score_attack,
)
from skdp.testing._data import FitData, contrasting_data, register_data
from skdp.testing._hooks import fixed_noise, null_release, seeded_entropy
from skdp.testing._neighbours import Neighbours, register_neighbours
from skdp.testing._norm_neighbours import FrobeniusNeighbours, SpectralNeighbours
from skdp.testing._pairs import candidate_pairs, register_pairs
from skdp.testing._readout_pairs import _record_pairs as _record_pairs  # registers itself
from skdp.testing._sketch_cases import RankOneNeighbours
from skdp.testing._statistics import (
    distribution_free_mu,
    epsilon_lower_bound,
    gaussian_mu,
    runs_needed,
)
from skdp.testing._transcript_audit import (
    StepAudit,
    TranscriptReport,
    transcript_audit,
    worst_case_pair,
)
from skdp.testing._transcripts import Opening, Transcript, record_transcript, replay_answers
from skdp.testing.audit import AuditReport, audit
from skdp.testing.checks import dp_estimator_checks, parametrize_with_dp_checks
from skdp.testing.sensitivity import (
    SensitivityReport,
    check_lazy,
    check_order_invariance,
    check_sensitivity,
)

__all__ = [
    "AuditReport",
    "CalibrationReport",
    "CanaryReport",
    "FitData",
    "FrobeniusNeighbours",
    "Neighbours",
    "Opening",
    "RankOneNeighbours",
    "SensitivityReport",
    "SpectralNeighbours",
    "StepAudit",
    "Transcript",
    "TranscriptReport",
    "audit",
    "calibration",
    "canary_report",
    "candidate_pairs",
    "check_calibration",
    "check_lazy",
    "check_order_invariance",
    "check_sensitivity",
    "coherence_canary",
    "contrasting_data",
    "distribution_free_mu",
    "dp_estimator_checks",
    "epsilon_lower_bound",
    "fixed_noise",
    "gaussian_mu",
    "null_release",
    "parametrize_with_dp_checks",
    "record_transcript",
    "register_data",
    "register_neighbours",
    "register_pairs",
    "replay_answers",
    "runs_needed",
    "score_attack",
    "seeded_entropy",
    "transcript_audit",
    "worst_case_pair",
]

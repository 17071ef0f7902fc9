"""Tools to check that an estimator of your own keeps its privacy promise.

The most sensitive check comes first:

- `check_sensitivity` attacks the claimed sensitivity of a query with adversarial neighbours,
without noise.
- `transcript_audit` compares all that passed the gate in one fit with what the receipt claims.
- `null_release` with `fixed_noise`: any difference is then a leak around the gate.
- `audit` repeats fits and bounds the privacy parameter from below with confidence.

Everything here sees exact private answers: for tests, never in production. The checks, data,
neighbours and worst-case pairs of the estimators of this package are in `tests/tools`.
"""

from skdp.testing._transcripts import (
    RecordedRelease,
    Transcript,
    fixed_noise,
    null_release,
    record_transcript,
    replay_answers,
    seeded_entropy,
)
from skdp.testing.audit import (
    AuditReport,
    FitData,
    StepAudit,
    TranscriptReport,
    audit,
    distribution_free_mu,
    epsilon_lower_bound,
    gaussian_mu,
    runs_needed,
    transcript_audit,
)
from skdp.testing.sensitivity import (
    Neighbours,
    SensitivityReport,
    check_charge_before_read,
    check_sensitivity,
    register_neighbours,
)

__all__ = [
    "AuditReport", "FitData", "Neighbours", "RecordedRelease", "SensitivityReport", "StepAudit",
    "Transcript", "TranscriptReport", "audit", "check_charge_before_read", "check_sensitivity",
    "distribution_free_mu", "epsilon_lower_bound", "fixed_noise", "gaussian_mu", "null_release",
    "record_transcript", "register_neighbours", "replay_answers", "runs_needed", "seeded_entropy",
    "transcript_audit",
]  # fmt: skip

"""DPLowRankFactorizer: a transcript audit of every combination that the class accepts.

What passed the gate is compared between neighbours, with the sketch drawn and the noise as it was.
With exact norms (worst case) the realised loss may not exceed the claim. With a random sketch the
claim is a law: one draw may exceed its mean, so the audit compares with a high quantile, and the
law itself is tested in tests/privacy/accounting/test_sketch_laws.py.
"""

import pytest

from skdp import DPLowRankFactorizer
from skdp.testing import seeded_entropy, transcript_audit
from tools.pairs import worst_case_pair

UNITS = [
    ("frobenius", "add_remove"),
    ("rank_one", "add_remove"),
    ("row", "zero_out"),
    ("row", "replace"),
    ("entry", "add_remove"),
    ("entry", "replace"),
]
SKETCHES = ("gaussian", "srht", "sparse", "isometry")
METHODS = ("two_sketch", "three_sketch")


def is_refused(unit, sketch, mode):
    """The combinations of mode "random" that have no bound; with exact norms all are accepted."""
    if mode == "worst_case":
        return False
    return sketch == "isometry" or (sketch in ("srht", "sparse") and unit != "entry")


def cases():
    for unit, adjacency in UNITS:
        yield unit, adjacency, "dense", "gaussian", "random"
        for method in METHODS:
            for sketch in SKETCHES:
                for mode in ("random", "worst_case"):
                    yield unit, adjacency, method, sketch, mode


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "adjacency", "method", "sketch", "mode"), list(cases()))
def test_transcript(unit, adjacency, method, sketch, mode):
    model = DPLowRankFactorizer(
        1, privacy_unit=unit, adjacency=adjacency, method=method, sketch=sketch,
        sensitivity_mode=mode, epsilon=4.0, sketch_size=(5, 7),
        unit_bound=(-0.5, 2.0) if unit == "entry" else None,
    )  # fmt: skip
    if method != "dense" and is_refused(unit, sketch, mode):
        with pytest.raises(ValueError, match="has no bound"):
            worst_case_pair(model)
        return
    with seeded_entropy(1):
        report = transcript_audit(model, worst_case_pair(model))
    report.check()
    assert report.ratio > 0.2, report  # the pair reaches the sketch

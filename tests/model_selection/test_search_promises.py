"""Our own checks on private searches: slow, since each fit is a search."""

import pytest

from skdp import DPPCA
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.testing import parametrize_with_dp_checks

pytestmark = pytest.mark.slow

SCORER = make_private_scorer("reconstruction", (0.0, 100.0))
# Large enough that scores are seldom cut to an end of their bounds; 2.5 times as much is below
# the epsilon where noise stays as it is.
SEARCHES = [
    DPGridSearchCV(
        DPPCA(clip_norm=1.0), {"n_components": [1, 2]}, SCORER, strategy=strategy, epsilon=15.0
    )
    for strategy in ("compose", "random_stopping")
]
EXPECTED = {
    "check_receipt": "a search has one line for many openings of the gate; see test_private_search",
    "check_scaling": "a score has the scale of its bounds",
}


@parametrize_with_dp_checks(SEARCHES, expected_failed_checks=lambda _: EXPECTED)
def test_keeps_its_promise(estimator, check):
    check(estimator)

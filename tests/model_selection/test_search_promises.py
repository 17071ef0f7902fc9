"""Our own checks on private searches: slow, since each fit is a search."""

import pytest

from skdp import DPPCA
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from tools.checks import parametrize_with_dp_checks

pytestmark = pytest.mark.slow

# It has no scale, as an estimator has that learns its own.
SCORER = make_private_scorer("share_lost", (0.0, 1.0))
# Large enough that scores are seldom cut to an end of their bounds; 2.5 times as much is below
# the epsilon where noise stays as it is.
SEARCHES = [
    DPGridSearchCV(
        DPPCA(clip_norm=1.0), {"n_components": [1, 2]}, SCORER, strategy=strategy, epsilon=15.0
    )
    for strategy in ("compose", "random_stopping")
]


@parametrize_with_dp_checks(SEARCHES)
def test_keeps_its_promise(estimator, check):
    check(estimator)

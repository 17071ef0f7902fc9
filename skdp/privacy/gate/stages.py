"""A budget in two stages: pure answers first; what they say decides what the rest is.

*Why both ways cost (epsilon, delta).* The first stage is p-DP; what follows is pure with
epsilon - p, or Gaussian with the mu for which p-DP and mu-GDP together are (epsilon, delta)-DP.
Let the first answer be o, of privacy loss L(o) in [-p, p] between two neighbours. What follows
adds P(o) delta'(epsilon - L(o)) to the whole delta at epsilon, delta' being the curve of the rest:
nothing where it is pure, since epsilon - L(o) >= epsilon - p; and where it is Gaussian never more
than in the mechanism that is Gaussian after every answer, whose sum is delta. So the way may depend
on o as it likes.

*What composes.* At other epsilons one way has the larger curve here and the other one there, and a
receipt may not tell which way was taken: it states what holds for every (epsilon, delta)-DP
mechanism (Kairouz, Oh and Viswanath 2015). That is less than a Gaussian says, so that fits which a
ledger or a search counts have no stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.budget import PrivacyBudget


@dataclass(frozen=True)
class StagedBudget:
    """The budgets of two stages.

    Parameters
    ----------
    epsilon, delta : float
        Of both together; delta is not 0.
    first : float
        Share of epsilon of the first stage.

    Attributes
    ----------
    opening, pure, gaussian : PrivacyBudget
        What the first stage may spend, and the second one, either way. The pure part of the
        Gaussian way is that of the first stage.
    """

    epsilon: float
    delta: float
    first: float
    opening: PrivacyBudget = field(init=False)
    pure: PrivacyBudget = field(init=False)
    gaussian: PrivacyBudget = field(init=False)

    def __post_init__(self) -> None:
        if not (0 < self.first < 0.5 and self.offered(self.epsilon, self.delta)):
            raise ValueError(
                "a staged budget needs a first share in (0, 0.5), a delta, and an epsilon that "
                f"noise is calibrated to. Got {self.first!r}, {self.delta!r}, {self.epsilon!r}."
            )
        spent = self.first * self.epsilon
        budgets: dict[str, Any] = {
            "opening": PrivacyBudget(spent, 0.0),
            "pure": PrivacyBudget(self.epsilon - spent, 0.0),
            "gaussian": PrivacyBudget(self.epsilon, self.delta, spent),
        }
        if budgets["gaussian"].pure_epsilon != spent:
            raise PrivacyError("the noise of a staged budget is calibrated to another first stage")
        for name, budget in budgets.items():
            object.__setattr__(self, name, budget)

    @staticmethod
    def offered(epsilon: float, delta: float) -> bool:
        """Whether a budget can have stages: noise is calibrated to all of epsilon."""
        if not 0 < epsilon < math.inf or not delta > 0:
            return False
        return PrivacyBudget(epsilon, delta).calibration[0] == epsilon

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What composes, whichever way is taken; the sampler's error is apart, as elsewhere."""
        delta = self.delta - self.gaussian.sampler_delta
        return Loss("pure", self.epsilon), Loss("delta", delta)

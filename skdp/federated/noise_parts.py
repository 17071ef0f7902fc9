"""Distributed noise: each client adds a part, and the parts of honest clients are enough.

Each client of a federation adds an integer Gaussian N_Z(sigma_c) to its integer contribution, and a
secure sum opens the total alone. A client is protected by the noise parts that no attacker knows.
Of the s parts of a step, T belong to colluding clients, and up to F never arrive. So at least
h = s - T - F honest parts are in every total that is opened.

*Law of their sum.* For X of N_Z(a) and Y of N_Z(b), P(X + Y = z) is N_Z(sqrt(a^2 + b^2)) at z times
the sum over integers x of exp(-(x - c)^2 / (2 t^2)), t = ab / sqrt(a^2 + b^2) and
c = z a^2/(a^2 + b^2). By Poisson summation that sum does not depend on c but for a factor
1 +- 2.01 exp(-2 pi^2 t^2). Here t >= sigma_c / sqrt(2) with sigma_c = 6.75e6: the factor is 1 to
within exp(-4e14). So h parts are N_Z(sqrt(h) sigma_c), which is within 4.9e-4 / (h^2 sigma_c^4) of
the rounded Gaussian of variance h sigma_c^2 - 1/12, the `effective_sigma` of the accounting. Each
part drawn adds the total variation of its sampler. The parts beyond h are independent of these:
adding them, or revealing them to the colluders, is post-processing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from skdp._limits import IntArray
from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.federated.config import AggregationConfig
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.gate.bounds import Bound, gaussian_step
from skdp.privacy.gate.session import Grant, PrivacySession
from skdp.privacy.noise import integers as noise

# Public cap on what one unit adds, in steps: integers of a block stay exact, as in the central fit,
# and a total of up to 2**29 rows fits 64 bits (beyond that it wraps, which affects accuracy only).
_LARGEST_CHANGE = 2.0**33


class PartGrant(Grant):
    """A grant whose noise comes in parts, one from each client of a federation.

    A client uses it once, by `noised`, which adds this client's part alone: too little noise
    outside of a secure sum. The server uses it once, by `close`. The noise that the receipt counts
    (`noise_scale`) is that of the clients who neither collude nor drop out.
    """

    share: float = 0.0  # the budget fraction that was paid

    def close(self, total: IntArray, n_parts: int) -> Answer:
        """Turn the opened sum of `n_parts` contributions into the public answer."""
        self.use()
        scale = self.step * noise.PART_EFFECTIVE_SIGMA * math.sqrt(n_parts)
        return self.finish(total)._replace(noise_scale=scale)

    def open(self, answer: Callable[[float], NDArray[Any]]) -> Answer:
        """Refuse, because one part is less noise than the charge is for."""
        raise PrivacyError("a grant of parts is opened by a secure sum of contributions only.")


def granted_step(bound: Bound, mu: float, parts: AggregationConfig, step: float | None) -> float:
    """Return the step of a release in parts; one that was proposed is refused if it is too fine.

    A step is too fine if it is no normal float, or if its mu is larger than the charge.
    """
    allowed, smallest = mu * parts.effective_sigma, max(sys.float_info.min, bound.min_step)
    if step is None:
        step = gaussian_step(bound, mu, parts.effective_sigma)
    elif not (bound.l2 > 0 and smallest <= step < math.inf and bound.l2_steps(step) <= allowed):
        raise PrivacyError(
            f"{bound.name!r} was asked for at a step that is too fine for this client's budget: "
            "its noise would be too small. Nothing was sent. Give the server's fit at most the "
            "'epsilon' and 'delta' of its clients."
        )
    if bound.l2_steps(step) > _LARGEST_CHANGE:
        raise PrivacyError(
            f"{bound.name!r} of {parts.n_clients} clients does not fit exact integers; use a "
            "smaller 'epsilon' or fewer clients in a step."
        )
    return step


def distribute(
    session: PrivacySession,
    bound: Bound,
    share: float,
    parts: AggregationConfig,
    *,
    step: float | None = None,
) -> PartGrant:
    """Pay for one release whose noise many clients add in parts; nothing is read yet.

    The server grants it on the bound of a query over no rows; each client grants it on its own
    session, at the server's step, which it refuses if that is too fine for its own budget.

    Parameters
    ----------
    session : PrivacySession
        The session that is charged.
    bound : Bound
        The public bound of the statistic, for a change inside one client.
    share : float
        Share of the budget (of mu squared).
    parts : AggregationConfig
        How many clients there are, and how many may collude or drop out.
    step : float or None
        The step that was granted elsewhere; None finds it.

    Returns
    -------
    PartGrant
    """
    if session.budget.exact or session.budget.pure or session.budget.copies > 1:
        raise PrivacyError(
            "distributed noise is Gaussian: it needs a finite 'epsilon' and a 'delta' above 0."
        )
    mechanism = "distributed gaussian"
    with session.lock:
        share = session.affordable(bound, share, draws=parts.draws)
        mu = session.mu(share)
        step = granted_step(bound, mu, parts, step)
        noise_scale = step * parts.effective_sigma
        grant = PartGrant(session, bound, mechanism, step, noise_scale, noise.PART_LEVELS)
        grant.share = share
        line = LedgerEntry(bound.name, mechanism, bound.l2, noise_scale, Loss("gaussian", mu))
        session.pay(line, share, draws=parts.draws * bound.size)
    return grant

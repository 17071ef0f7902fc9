"""Parameters of the personalised estimators: what is allowed, and how the budget is shared."""

from __future__ import annotations

import math
from typing import Any

from skdp._validation import (
    check_bool,
    check_int,
    check_option,
    check_range,
    check_real,
    check_split,
)
from skdp.regression._global_model import base_shares, sight_shares
from skdp.regression._planning import expect_risk, expect_users, no_users
from skdp.regression._users import check_candidates
from skdp.solvers.candidates import line_net
from skdp.theory import FitPlan, check_counts, rehearse

_NET_POINTS = 1000
_PURE_SHARE = 0.5  # of epsilon, for the exponential mechanism beside Gaussian releases
_SHARES = {"whitener": 0.05, "init": 0.45, "rounds": 0.42, "head": 0.04, "global": 0.04}


class ParametersMixin:
    """Checks and defaults, all of them public."""

    def _check_parameters(self):
        check_int(self, "n_components", 1, also=("auto",))
        check_int(self, "n_rounds", 0)
        check_real(self, "clip_level", 1e-100, 1e100, closed="both")
        if self._starts_from_a_model:
            check_range(self, "target_bounds")
        else:
            check_real(self, "coef_bound", 1e-100, 1e100, closed="both", also=("auto",))
        check_option(self, "local", ("ridge", "moment"))
        check_option(self, "refine", ("residual", "cross", "gram"))
        if self.n_components == "auto" and self.refine == "gram":
            raise ValueError(
                "n_components='auto' needs refine='residual' or 'cross'; use a number of "
                "components with 'gram'. Got 'auto'."
            )
        check_option(self, "init", ("votes", "pairs", "random", "exponential"))
        check_option(self, "head", ("voted", "subspace", "hybrid"))
        check_bool(self, "fit_intercept")
        check_bool(self, "require_users")
        if not isinstance(self.whiten, bool):
            check_option(self, "whiten", ("diag",))
        if self.n_components == "auto" and self.init != "votes":
            raise ValueError("n_components='auto' needs init='votes'. Use a number.")
        if self.refine == "gram" and self._loss_name() != "squared":
            raise ValueError("refine='gram' needs loss='squared'; use 'residual' or 'cross'.")
        return check_split(self, self._default_shares())

    def plan(
        self,
        n_samples: int,
        n_features: int,
        *,
        signal: float = 0.5,
        n_rows: Any = None,
        noise: float = 0.25,
    ) -> FitPlan:
        """Say what a fit would release, and what error to expect; no data is touched.

        Parameters
        ----------
        n_samples : int
            Number of users, or a guess of it where it is private.
        n_features : int
            Number of features.
        signal : float, default=0.5
            Assumed share of the square of a user's own direction (what its rows alone would say)
            that lies in the shared subspace.
        n_rows : int or None, default=None
            Assumed rows of each user. With them the error is the risk of the heads, without them
            the angle of the subspace.
        noise : float, default=0.25
            Assumed variance of the noise, in units of what users' heads can explain.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        n, d = n_samples, n_features
        check_counts(self, n_samples=n, n_features=d)
        self._check_parameters()
        if not 0 < signal <= 1:
            raise ValueError(f"'signal' must be in the range (0, 1]. Got {signal!r} instead.")
        rehearsal = rehearse(self, n, no_users(n, d, self.adjacency))
        k = 1 if self.n_components == "auto" else self.n_components
        expected = expect_users(rehearsal, d, k, float(signal))
        if n_rows is not None:
            check_counts(self, n_rows=n_rows)
            numbers = d, k, self.clip_level, n_rows, float(noise)
            expected = expect_risk(expected, rehearsal, *numbers)
        return rehearsal.plan(n, d, expected)

    def _default_shares(self):
        pure = self.delta == 0
        skipped = set()
        if self.whiten is False:
            skipped.add("whitener")
        if self.init == "random" or (self.init == "exponential" and not pure):
            skipped.add("init")
        if self.n_rounds == 0:
            skipped.add("rounds")
        if self.head != "voted":
            skipped.add("head")
        shares = {name: share for name, share in _SHARES.items() if name not in skipped}
        if self._starts_from_a_model:
            del shares["global"]
            shares |= base_shares(self)
        else:
            shares |= sight_shares(self)
        counted = self.init == "votes" or (self.n_rounds > 0 and self.refine == "residual")
        if self.adjacency == "add_remove" and not counted:
            shares["count"] = 0.01
        return shares

    def _offers_pure_dp(self):
        return (
            self.init in ("random", "exponential")
            and self.whiten is not True
            and (self.n_rounds == 0 or self.refine != "gram")
        )

    def _pure_epsilon(self):
        if self.init != "exponential" or self.delta == 0:
            return 0.0
        return _PURE_SHARE * check_real(self, "epsilon", 0, math.inf, closed="right")

    def _check_n_components(self, d):
        if self.n_components != "auto" and self.n_components > d:
            raise ValueError(
                f"n_components={self.n_components!r} must be between 1 and n_features={d!r}."
            )
        has_net = self.n_components == 1 and d <= 4
        if self.init == "exponential" and self.candidates is None and not has_net:
            raise ValueError(
                "init='exponential' has a built-in net for n_components=1 and at most 4 features "
                "only; pass 'candidates' of shape (n, n_features, n_components)."
            )
        self._candidates_of(d)
        if self.refine == "gram" and self.n_rounds and d * int(self.n_components) > 3000:
            raise ValueError(
                "refine='gram' releases a matrix of order n_features * n_components, at most 3000. "
                "Use refine='residual'."
            )

    def _candidates_of(self, d):
        if self.init != "exponential":
            return None
        if self.candidates is None:
            return line_net(d, _NET_POINTS)
        return check_candidates(self.candidates, (d, self.n_components))

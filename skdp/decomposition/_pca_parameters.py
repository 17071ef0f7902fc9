"""What DPPCA is asked for, and how its budget is cut."""

import math
from numbers import Integral

from skdp._bounds import check_column_bounds
from skdp._validation import (
    check_bool,
    check_center_option,
    check_clip_norm,
    check_int,
    check_option,
    check_real,
)
from skdp.decomposition._base import check_in_range
from skdp.decomposition._spectral import check_normalizer

_SOLVERS = (
    "auto",
    "full",
    "covariance_eigh",
    "arpack",
    "randomized",
    "gram",
    "power",
    "screened",
)


class PCAParametersMixin:
    """The parameters of DPPCA, checked before anything is spent."""

    def _check_parameters(self):
        self._check_unit()
        check_bool(self, "copy")
        check_bool(self, "whiten")
        check_option(self, "svd_solver", _SOLVERS)
        check_normalizer(self)
        check_real(self, "tol", 0, math.inf, closed="left")
        check_int(self, "iterated_power", 0, also=("auto",))
        check_int(self, "n_oversamples", 1)
        check_clip_norm(self)
        check_center_option(self)
        if self.bounds is not None:
            check_column_bounds(self, "bounds")
            if not isinstance(self.center, str):
                raise ValueError("DPPCA takes 'bounds' or an array for 'center', not both.")

    def _wants_spectrum(self, d):
        """Whether all eigenvalues are asked for, not a few leading components."""
        k = self.n_components
        return not isinstance(k, Integral) or k == 0 or k > d // 3

    def _default_shares(self, d, sparse):
        one_release = self._centers() and self._wants_spectrum(d) and sparse
        if one_release:
            shares = {"moment": 1.0}
        elif self._wants_spectrum(d):
            shares = {"gram": 0.91, "count": 0.01}
        else:
            shares = {"subspace": 0.87, "ritz": 0.03, "trace": 0.01, "count": 0.01}
        if self._centers() and not one_release:
            shares["mean"] = 0.08
        if self._total_is_public():
            shares.pop("count", None)
        if self.clip_norm == "auto" and self.bounds is None:
            learnt = (
                {"clip_norm": 0.06, "spread": 0.05} if "mean" in shares else {"clip_norm": 0.07}
            )
            rest = (1 - math.fsum(learnt.values())) / math.fsum(shares.values())
            shares = {key: rest * value for key, value in shares.items()} | learnt
        return self._with_weights(shares)

    def _rank(self, n, d):
        """Return what scikit-learn's rank stands for: a person may have any number of rows."""
        return d if self._by_group else min(n, d)

    def _centers(self):
        return isinstance(self.center, str) and self.center == "dp"

    def _check_n_components(self, source, n_features):
        rule = self.n_components
        public_rows = self.adjacency == "replace" or self.epsilon == math.inf
        n_samples = source.n_rows() if public_rows and not self._by_group else math.inf
        if isinstance(rule, str) and rule == "mle" and n_samples < n_features:
            raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
        if isinstance(rule, str) and rule in ("mle", "auto"):
            return
        if isinstance(rule, float) and 0 < rule < 1:
            return
        if rule is not None:
            check_int(self, "n_components", 0, also=("mle", "auto"), none=True)
            check_in_range(self, rule, n_samples, n_features)

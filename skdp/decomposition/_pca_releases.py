"""What DPPCA releases: count, mean, and the second moment of the centred rows or its subspace."""

import math
from numbers import Integral

import numpy as np

from skdp._inputs import as_source
from skdp._validation import check_split
from skdp.answer import released_count
from skdp.decomposition._base import is_sparse, public_range, warn_of_nothing
from skdp.decomposition._spectral import (
    DIRECTION_LEVEL,
    SPECTRUM_LEVEL,
    in_rows,
    rotate_by_ritz,
    row_clip_norm,
    row_noise,
    row_route,
    row_subspace,
)
from skdp.solvers.postprocess import (
    ReleasedMoment,
    inside_ball,
    mean_push,
    pca_attributes,
    split_moment,
    subspace_attributes,
)
from skdp.solvers.spectral import clipped_gram

_CORNER = 0.5  # of the clip norm: balances the noise of the mean against that of the moment


class PCAReleases:
    """The releases of one fit, in their order."""

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        source = as_source(X)
        d, sparse = source.n_features, is_sparse(source)
        self._check_n_components(source, d)
        center, clip_norm = public_range(self, d, centers=self._centers())
        sparse = sparse and (center is None or not self._centers())
        shares = check_split(self, self._default_shares(d, sparse))
        query = self._unit_query(source)
        ask = session.ask(query if center is None else query.centered(center))
        ask, most = self._weighted(session, ask, shares)
        if clip_norm is None:
            clip_norm = self._clip_norm_of(session, ask, shares.get("clip_norm"), d)
        n = query.n_rows if self._total_is_public() else None
        rows = ask.clipped(clip_norm)
        if self._wants_spectrum(d):
            attributes = self._fit_spectrum(session, rows, clip_norm, d, n, shares, sparse)
        else:
            route = row_route(self.svd_solver, d, self.n_components, sparse)
            attributes = self._fit_subspace(session, rows, clip_norm, d, n, shares, route)
        if center is not None:
            attributes["mean_"] = center + attributes["mean_"]
        return in_rows(attributes, most)

    # -- shares ----------------------------------------------------------------------------

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
        """Return what scikit-learn's rank stands for: a group may have any number of rows."""
        return d if self._by_group else min(n, d)

    def _centers(self):
        return isinstance(self.center, str) and self.center == "dp"

    # -- releases --------------------------------------------------------------------------

    def _clip_norm_of(self, session, ask, share, d, near=None):
        level = SPECTRUM_LEVEL if self._wants_spectrum(d) else DIRECTION_LEVEL
        return row_clip_norm(self, session, ask, share, d, level=level, near=near)

    def _count(self, ask, n, shares):
        """Number of rows, public or released; kept above two deviations of its noise."""
        if n is not None:
            return n
        count = ask.count(share=shares["count"])
        return released_count(*count)

    def _center(self, session, ask, n, clip_norm, d, shares):
        """Return the released mean, what its error adds, the rows about it and their clip norm."""
        if not self._centers():
            return np.zeros(d), 0.0, ask, clip_norm
        sums = ask.sums(share=shares["mean"])
        mean = inside_ball(sums.value / n, clip_norm)
        ask = ask.centered(mean)
        if "spread" in shares:
            clip_norm = self._clip_norm_of(session, ask, shares["spread"], d, near=clip_norm)
            ask = ask.clipped(clip_norm)
        return mean, mean_push(sums.noise_scale, n, d), ask, clip_norm

    def _fit_spectrum(self, session, ask, clip_norm, d, n, shares, sparse):
        """Release the whole second moment about the centre; everything after it is free."""
        if self._centers() and sparse:  # in one release, as centred rows would not be sparse
            corner = _CORNER * clip_norm if math.isfinite(clip_norm) else 1.0
            moment = ask.moment(corner, share=shares["moment"])
            released = split_moment(moment.value, corner, moment.noise_scale, clip_norm, n)
        else:
            n_rows = self._count(ask, n, shares)
            mean, push, ask, clip_norm = self._center(session, ask, n_rows, clip_norm, d, shares)
            noise = row_noise(session, self.adjacency, n_rows, clip_norm)
            gram, scale = clipped_gram(ask, d, shares["gram"], noise, level=SPECTRUM_LEVEL)
            released = ReleasedMoment(gram, mean, n_rows, scale, push)
        rank = self._rank(released.n, d)
        limit = int(rank) if session.budget.exact or n is not None else d
        attributes = pca_attributes(released, self.n_components, limit, rank)
        warn_of_nothing(self, attributes["n_components_"])
        return attributes | {"n_samples_": round(released.n), "clip_norm_": clip_norm}

    def _fit_subspace(self, session, ask, clip_norm, d, n, shares, route):
        """Release count, mean, leading subspace of the centred rows, Ritz values and total."""
        n_rows = self._count(ask, n, shares)
        mean, _, ask, clip_norm = self._center(session, ask, n_rows, clip_norm, d, shares)
        if session.budget.exact and route == "screened":
            route = "power"
        V, _ = row_subspace(
            session,
            ask,
            route,
            d,
            self.n_components,
            shares["subspace"],
            row_noise(session, self.adjacency, n_rows, clip_norm),
            n_iter=self.iterated_power,
            n_oversamples="auto",
        )
        values, V = rotate_by_ritz(ask.projected_gram, V, shares["ritz"])
        total = float(ask.square_sum(share=shares["trace"]).value)
        attributes = subspace_attributes(values, V, total, n_rows, self._rank(n_rows, d))
        return attributes | {"mean_": mean, "n_samples_": round(n_rows), "clip_norm_": clip_norm}

"""What is public of a stream of DPIncrementalPCA from its first batch on, and who is in a batch."""

import math

from skdp._groups import labels_of, persons_of_batch, split_rows
from skdp._inputs import as_blocks, float_dtype
from skdp._validation import check_split
from skdp.answer import released_count
from skdp.decomposition._base import check_center, is_sparse
from skdp.decomposition._centring import Start, started
from skdp.decomposition._moments import MOMENT_FEATURES, default_shares, with_rest
from skdp.decomposition._spectral import SPECTRUM_LEVEL, row_clip_norm, row_noise
from skdp.solvers.linalg import orthonormal
from skdp.solvers.moment_sketch import sketch_size

# Of the share of a start: the number of rows, means, searches for a clip norm about them.
_START = {"count": 0.1, "mean": 0.4, "spread": 0.5}


class FactsMixin:
    """Sizes, bounds and weights that all releases of a stream share."""

    def _batch(self, X, groups, seen, **options):
        """Return the rows of a batch, and who was seen by now, as long as persons are told apart.

        A person who comes twice is an error: streams where nobody does have only neighbours where
        nobody does, and the guarantee is among them.
        """
        if not self._by_group:
            return self._checked_rows(X, groups, **options), seen
        self._check_given(groups)
        if as_blocks(X) is not None:
            raise ValueError(f"{type(self).__name__}.partial_fit takes persons in memory.")
        X, groups = split_rows(self, X, groups, **options)
        return persons_of_batch(X, labels_of(groups, X.shape[0]), seen)

    def _n_components_of(self, rows):
        """Number of components, from public sizes; an error if there are not as many."""
        d = rows.n_features
        public_rows = self.adjacency == "replace" or self.epsilon == math.inf
        public_rows = public_rows and not self._by_group
        limit = min(rows.n_rows(), d) if public_rows else d
        what = "min(n_samples, n_features)" if public_rows else "n_features"
        if self.n_components is not None and self.n_components > limit:
            raise ValueError(
                f"n_components={self.n_components!r} must be between 1 and {what}={limit!r} (of "
                f"the first batch, for partial_fit). Got {self.n_components!r}."
            )
        return limit if self.n_components is None else int(self.n_components)

    def _facts(self, session, X):
        """Return what is public from the first batch on, and the shares of the releases."""
        d, public = X.n_features, self._total_is_public()
        k = self._n_components_of(X)
        center = check_center(self.center, d)
        centers = center is None and self.center == "dp"
        starts = centers and not is_sparse(X)  # rows about a point are no longer sparse
        shares = default_shares(d, centers, public, self.clip_norm, starts)
        shares = self._with_weights(shares)
        shares = check_split(self, shares)
        query = self._unit_query(X)
        ask = session.ask(query if center is None else query.centered(center))
        ask, unit = self._weighted(session, ask, shares)
        n = X.n_rows() if public else None
        start = self._start(session, ask, shares, d, n)
        shares = with_rest(shares, start.left)
        sketch = None
        if d > MOMENT_FEATURES:
            sketch = orthonormal(session.random_signs((d, sketch_size(k, d))))
        facts = {
            "adjacency": self.adjacency,
            "clip_norm": start.clip_norm,
            "beyond": start.beyond,
            "center": center,
            "about": start.about,
            "centers": centers,
            "k": k,
            "d": d,
            "n": n,
            "persons": self._by_group,
            "most": self._most(session, unit),
            "unit": unit,
            "sketch": sketch,
            "dtype": float_dtype(X).str,
            "names": list(getattr(self, "feature_names_in_", ())),
        }
        return facts, shares

    def _start(self, session, ask, shares, d, n):
        """Learn the clip norm of the first rows, and where they lie if that is far from zero."""

        def level_of(ask, share, near=None):
            return row_clip_norm(self, session, ask, share, d, level=SPECTRUM_LEVEL, near=near)

        level = level_of(ask, shares.get("clip_norm"))
        if "start" not in shares or session.budget.exact:
            return Start(None, *level, 0.0)
        parts = {name: part * shares["start"] for name, part in _START.items()}
        left = parts["count"]
        if n is None:
            left, n = 0.0, released_count(*ask.count(share=parts["count"]))
        noise = row_noise(session, self.adjacency, n, level.value)
        start = started(ask, noise, level, parts, level_of)
        return start._replace(left=start.left + left)

    def _most(self, session, unit):
        """Return how many rows a person counts at most; None for persons who count once."""
        if not self._by_group or not self._weighs_rows():
            return None
        return math.inf if self.group_weight == "rows" and session.budget.exact else unit

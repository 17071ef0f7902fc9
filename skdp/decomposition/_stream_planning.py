"""Plans of the decompositions that take streams: incremental PCA and the factorizer."""

import math
from dataclasses import replace

import numpy as np

from skdp._validation import check_split
from skdp.data.blocks import row_source
from skdp.data.linear_maps import SketchMap
from skdp.decomposition._factorizer_layout import draw_maps, make_layout
from skdp.decomposition._moments import MOMENT_FEATURES, default_shares, statistics
from skdp.decomposition._planning import (
    check_shape,
    check_share,
    guarantee_of,
    samples_needed,
)
from skdp.privacy.streams.sketch_draws import SketchSource
from skdp.queries.rows import RowQuery
from skdp.solvers.moment_sketch import sketch_size
from skdp.theory import (
    FitPlan,
    factorization_error,
    factorization_threshold,
    gram_loss,
    moment_edge,
    planned,
    planned_sketches,
    planned_stream,
)

_CLIP_STEPS = 8  # of the search for a clip norm
_STAND_IN = 256  # rows of a sketch whose bound does not depend on their number
_PUBLIC_SEED = 0  # of sketches that stand for those of the fit


class IncrementalPlanMixin:
    """The method `plan` of DPIncrementalPCA."""

    def plan(self, n_samples, n_features, *, signal=None, stream=True):
        """Say what a stream or a fit would release, and what error to expect; no data is touched.

        Costs nothing: it is computed from the parameters and the shape alone. Pass a guess for a
        number of samples that is private.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data: all rows up to the last release.
        signal : float or None, default=None
            Assumed share of the squared length that the components hold; None is 0.5 (more if they
            are many).
        stream : bool, default=True
            Plan for `max_releases` calls of `partial_fit` (the error is that of the last release,
            whose noise is the largest), or for one call of `fit`.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        check_shape(type(self).__name__, n_samples, n_features)
        self._check_parameters()
        return plan_incremental(
            self, self._checked_session(), n_samples, n_features, signal, stream
        )


def _public_facts(estimator, n, d):
    """The facts of a fit, without rows."""
    clip = estimator.clip_norm
    clip = 1.0 if clip == "auto" or math.isinf(clip) else float(clip)
    center = isinstance(estimator.center, str) and estimator.center == "dp"
    k = estimator._n_components_of(row_source(np.broadcast_to(0.0, (n, d))))  # a shape, no rows
    sketch = np.eye(d, sketch_size(k, d)) if d > MOMENT_FEATURES else None
    replaced = estimator.adjacency == "replace"
    return {
        "adjacency": estimator.adjacency, "clip_norm": clip, "center": None, "centers": center,
        "k": k, "d": d, "n": n if replaced else None, "sketch": sketch,
    }  # fmt: skip


def plan_incremental(estimator, session, n, d, signal, stream):
    """Plan streams of moments; the last release has the largest noise."""
    facts = _public_facts(estimator, n, d)
    shares = default_shares(d, facts["centers"], facts["n"] is not None, estimator.clip_norm)
    shares = check_split(estimator, shares)
    k, clip = facts["k"], facts["clip_norm"]
    captured = check_share(signal, k, d)
    releases, noise = [], {}
    if "clip_norm" in shares:
        query = RowQuery(np.zeros((0, d)), clip_norm=math.inf, adjacency=estimator.adjacency)
        bound = query.norms_below(1.0, 0.9).bound
        options = {"times": _CLIP_STEPS, "name": "clip norm search"}
        releases.append(planned(session, bound, shares["clip_norm"], **options))
    for name, bounded in statistics(np.zeros((0, d)), facts).items():
        if stream:
            line, noise[name] = planned_stream(
                session, bounded.bound, shares[name], estimator.max_releases,
                mechanism=estimator.mechanism, touches=1,
            )  # fmt: skip
        else:
            line = planned(session, bounded.bound, shares[name], name=name)
            noise[name] = line.noise_scale
        releases.append(line)
    psd = noise.get("moment", noise.get("gram", math.nan)) / clip**2
    known, exact = facts["sketch"] is None, session.budget.exact

    def loss(rows):
        options = {"psd": psd, "rect": psd, "share": 1.0, "refined": False}
        return gram_loss(rows, d, k, captured, **options)

    worst = loss(1e-9) if known and not exact else 0.0
    calls = f"{estimator.max_releases} releases, paid at once" if stream else "one release, by fit"
    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=n,
        n_features=d,
        guarantee=guarantee_of(session),
        mu=session.budget.mu,
        unit="clip_norm" if estimator.clip_norm == "auto" else "1",
        error=0.0 if exact else loss(n) if known else math.nan,
        meaning="share of the best captured squared length that is lost, at the last release",
        found=min(1.0, moment_edge(psd, d, 1.0) / n) if known else math.nan,
        signal="share of the squared length that one direction must hold",
        assumptions=(
            calls,
            f"{k} components hold {captured:g} of the squared length, in equal parts",
            "rows are about as long as the clip norm, and centred",
        ),
        releases=tuple(releases),
        needed=samples_needed(loss, worst) if worst else 0,
    )


class FactorizerPlanMixin:
    """The method `plan` of DPLowRankFactorizer."""

    def plan(self, n_samples=None, n_features=None, *, signal=None, stream=None):
        """Say what a fit or a stream would release, and what error to expect; no data is touched.

        Costs nothing: it is computed from the parameters and the shape alone.

        Parameters
        ----------
        n_samples, n_features : int or None, default=None
            Shape of the matrix, which is public; None takes `matrix_shape`.
        signal : float or None, default=None
            Singular values that are assumed, all alike; None gives the threshold alone.
        stream : bool or None, default=None
            Plan for updates and `release`, or for `fit`; None is a stream if `matrix_shape` is
            given. With `max_releases` beyond 1 the error is that of the last release.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        name = type(self).__name__
        if n_samples is None and n_features is None and self.matrix_shape is not None:
            n_samples, n_features = self.matrix_shape
        check_shape(name, n_samples, n_features)
        self._check_parameters()
        self._check_matrix((n_samples, n_features))
        stream = self.matrix_shape is not None if stream is None else stream
        return plan_factorizer(
            self, self._checked_session(), (n_samples, n_features), signal, stream
        )


def stand_ins(estimator, plan, session):
    """Return sketches with the bounds of those of the fit, without the rows that no bound needs.

    Norms of Gaussian and isometric sketches depend on the draw: with `sketch_seed` they are those
    of the fit, else those of another draw.
    """
    kind = estimator.sketch
    known = (plan.random and kind == "gaussian") or (
        kind in ("sparse", "srht") and (plan.unit.single or plan.random)
    )
    shape = plan.shape
    if known:
        m, n = shape
        shape = (min(m, max(_STAND_IN, plan.core_size)), min(n, max(_STAND_IN, plan.sketch_size)))
    seed = _PUBLIC_SEED if estimator.sketch_seed is None else estimator.sketch_seed
    maps = draw_maps(
        replace(plan, shape=shape), kind, SketchSource.of(session, seed), estimator.first_row
    )
    return [SketchMap(a.name, plan.shape, a.left, a.right) for a in maps]


def plan_factorizer(estimator, session, shape, signal, stream):
    """Plan noisy sketches; their shares balance the errors of the two sides."""
    m, n = shape
    plan = make_layout(estimator, shape, estimator._unit(stream=stream))
    horizon = estimator.max_releases if stream else 1
    sketches = stand_ins(estimator, plan, session)
    bounds = [plan.unit.bound(sketch, random=plan.random) for sketch in sketches]
    releases, last = planned_sketches(
        session, bounds, plan.shares, horizon=horizon, mechanism=estimator.mechanism,
        window=estimator.window, parties=(estimator.honest_servers or 0) if stream else 0,
    )  # fmt: skip
    pairs = [s * math.sqrt(share) for s, share in zip(last, plan.shares, strict=True)]
    noise = sum(pairs[:2]) / len(pairs[:2])  # as if each had the whole budget
    found = factorization_threshold(plan.method, m, n, noise)
    value = None if signal is None else float(signal)
    calls = "one release" if horizon == 1 else f"{horizon} releases, paid at once"
    assumed = (f"{calls}, method {plan.method!r}",)
    if value is not None:
        assumed += (f"{plan.n_components} singular values of {value:g}, the others 0",)
    error = math.nan
    if value is not None:
        error = factorization_error(plan.method, m, n, noise, value)
    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=m,
        n_features=n,
        guarantee=guarantee_of(session),
        mu=session.budget.mu,
        unit="1",
        error=error,
        meaning="relative Frobenius error of the matrix",
        found=found,
        signal="singular value",
        assumptions=assumed,
        releases=releases,
    )

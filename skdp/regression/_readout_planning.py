"""Plans of the linear read-outs, from shapes and parameters alone."""

import math
from numbers import Integral

import numpy as np

from skdp._scales import column_weights
from skdp.queries.readout import ReadoutQuery, TargetScale
from skdp.regression._planning import facts_of, first_below
from skdp.solvers.scales import QUESTIONS
from skdp.theory import FitPlan, planned, readout_loss

__all__ = ["PARTS", "check_counts", "plan_readout"]

PARTS = (0.3, 0.4, 0.3)  # of what columns cost: their scales about 0, means, scales about these
_TARGET_LENGTH = 0.5  # assumed length of a target, in units of its bound


def check_counts(name, **counts):
    """Refuse a shape that is none."""
    for what, size in counts.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name}.plan needs a positive {what}. Got {size!r} instead.")


def plan_readout(estimator, session, shape, columns, signal, *, corner, target, whole):
    """Plan the release of second moments.

    `corner` and `target` are the lengths of the fit, in clip norms, `columns` those of the targets;
    `whole` says that targets are as long as their bound, as codes of labels are.
    """
    n, d = shape
    if not 0 < signal <= 1:
        raise ValueError(f"'signal' must be a share in the range (0, 1]. Got {signal!r} instead.")
    shares = estimator._check_parameters()
    auto = estimator._is_auto("clip_norm")
    clip = 1.0 if auto or math.isinf(estimator.clip_norm) else float(estimator.clip_norm)
    query = ReadoutQuery(
        np.zeros((0, d)), np.zeros((0, columns)), clip_norm=clip,
        scale=TargetScale.in_ball(1.0, columns), adjacency=session.adjacency,
    )  # fmt: skip
    releases = []
    for name, source in (("columns", query.columns()), ("target_bounds", query.targets())):
        if name in shares:
            releases += _search(session, source, shares[name], estimator.fit_intercept, name)
    if "clip_norm" in shares:
        bound, share = query.lengths().kept_below(1.0).bound, shares["clip_norm"]
        releases.append(planned(session, bound, share, times=QUESTIONS, name="clip norm search"))
    bound = query.readout(corner * clip, target * clip).bound
    releases.append(planned(session, bound, shares["readout"]))
    noise = releases[-1].noise_scale / math.sqrt(2) / clip**2
    length = (1.0 if whole else _TARGET_LENGTH) * target / math.sqrt(columns)

    def error(records):
        return readout_loss(records, d, length=1.0, target=length, noise=noise, signal=signal)

    kind = "codes of labels" if whole else "targets are half as long as their bound, and"
    return FitPlan(
        **facts_of(estimator, session, n, d),
        unit="clip_norm" if auto else "1",
        error=error(n),
        meaning="share of the explainable variance that is lost",
        found=min(1.0, 2 * noise * math.sqrt(d) / n),
        signal="share of the squared length that one direction must hold",
        assumptions=(
            "rows are about as long as the clip norm, spread evenly over all directions",
            f"{kind} linear in the rows up to {1 - signal:g} of their variance; alpha is small",
        ),
        releases=tuple(releases),
        needed=0 if session.budget.exact else first_below(error, 0.5),
    )


def _search(session, columns, share, centered, name):
    """List the releases of `find_columns`, or of the first of its steps."""
    d, label = columns.n_features, name.replace("_", " ")
    parts = [part * share for part in PARTS] if centered else [share]
    ranks = columns.octaves(np.zeros(d)).ranks(np.ones(d)).bound
    sums = columns.moments(np.zeros(d), np.ones(d), column_weights(d).rows).bound
    out = [planned(session, ranks, parts[0], times=QUESTIONS, name=f"{label} search")]
    if centered:
        out.append(planned(session, sums, parts[1], name=f"{label} first moments search"))
        named = {"times": QUESTIONS, "name": f"{label} search about the means"}
        out.append(planned(session, ranks, parts[2], **named))
    return out

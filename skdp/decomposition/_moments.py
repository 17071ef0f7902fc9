"""What DPIncrementalPCA releases, and how released moments become attributes.

`facts` is a dict of what is public from the first batch on; a checkpoint keeps it.
"""

import math

import numpy as np

from skdp.answer import released_count
from skdp.data.persons import each_alone
from skdp.decomposition._base import as_input_dtype
from skdp.decomposition._spectral import in_rows
from skdp.queries.person_maps import PersonWeight
from skdp.queries.persons import PersonQuery
from skdp.queries.rows import RowQuery
from skdp.solvers.linalg import symmetric_noise_edge
from skdp.solvers.moment_sketch import centered_sketch, sketch_attributes
from skdp.solvers.postprocess import (
    ReleasedMoment,
    clear_edge,
    debias_eigenvalues,
    inside_ball,
    pca_attributes,
    split_moment,
)

MOMENT_FEATURES = 3000  # beyond it a sketch of the moment is released
_CORNER = 0.5  # of the clip norm: balances the noise of the mean against that of the moment


_NO_MOMENTS = ("clip_norm", "start", "group_weight")
_LEVEL, _START = 0.07, 0.11  # shares of a clip norm, and of where rows lie


def default_shares(d, centers, n_is_public, clip_norm, starts=False):
    """Shares of the releases, from public sizes; `starts` says whether a centre is learnt first."""
    if d > MOMENT_FEATURES:
        shares = {"sketch": 0.9, "trace": 0.01, "count": 0.01}
        shares |= {"sums": 0.08} if centers else {}
    else:
        shares = {"moment": 1.0} if centers else {"gram": 0.99, "count": 0.01}
    if n_is_public:
        shares.pop("count", None)
    if clip_norm == "auto":
        learnt = {"clip_norm": _LEVEL} | ({"start": _START} if starts else {})
        rest = (1 - sum(learnt.values())) / sum(shares.values())
        shares = {key: rest * value for key, value in shares.items()} | learnt
    return shares


def with_rest(shares, left):
    """Return shares of which the moments, or what stands for them, have also what is left."""
    moments = {name: share for name, share in shares.items() if name not in _NO_MOMENTS}
    more = 1 + left / sum(moments.values())
    return shares | {name: more * share for name, share in moments.items()}


def statistics(X, facts, n_jobs=None):
    """Return name -> `Bounded` of some rows: each row, or person, is clipped by itself, once."""
    clip_norm = facts["clip_norm"]
    bounds = {"clip_norm": clip_norm, "adjacency": facts["adjacency"], "n_jobs": n_jobs}
    if facts["persons"]:
        query = PersonQuery(X, weight=PersonWeight(facts["most"]), **bounds)
    else:
        query = RowQuery(X, **bounds)
    center = _center(facts)
    if center is not None:
        query = query.centered(center)
    if facts["sketch"] is not None:
        out = {"sketch": query.gram_product(facts["sketch"]), "trace": query.square_sum()}
        out |= {"sums": query.sums()} if facts["centers"] else {}
    elif facts["centers"]:
        corner = _CORNER * clip_norm if math.isfinite(clip_norm) else 1.0
        return {"moment": query.moment(corner)}
    else:
        out = {"gram": query.gram()}
    if facts["n"] is None:
        out["count"] = query.count()
    return out


def decoded(answers, steps, facts):
    """Apply to the answers of streams what each query says of its own: public maps."""
    nobody = np.zeros((0, facts["d"]))
    nothing = statistics(each_alone(nobody) if facts["persons"] else nobody, facts)
    out = {}
    for name, answer in answers.items():
        decode = nothing[name].decode
        if decode is not None and steps[name]:
            answer = answer._replace(value=decode(answer.value, steps[name]))
        out[name] = answer
    return out


def fitted(answers, facts):
    """Turn released moments into the attributes of IncrementalPCA; everything here is free."""
    d, k = facts["d"], facts["k"]
    released = _released(answers, facts)
    if facts["sketch"] is None:
        attributes = pca_attributes(released, k, k, d if facts["persons"] else min(released.n, d))
        attributes["var_"] = np.maximum(np.diag(released.scatter) / released.n, 0.0)
    else:
        attributes = _from_sketch(released, answers, facts)
    attributes["mean_"] = _mean(released, facts)
    attributes["n_samples_seen_"] = round(released.n)
    attributes["clip_norm_"] = facts["clip_norm"]
    if facts["persons"]:
        attributes = in_rows(attributes, facts["unit"])
    return as_input_dtype(attributes, np.dtype(facts["dtype"]))


def below_edge(attributes, answers, facts):
    """Return how many released variances are no larger than those of noise alone; None if unknown.

    Taking off the push of the noise keeps the order, so that both are compared without it.
    """
    if facts["sketch"] is not None:
        return None
    released = _released(answers, facts)
    edge = symmetric_noise_edge(released.noise_scale, facts["d"])
    clear = clear_edge(edge, facts["d"]) + released.mean_push
    least = debias_eigenvalues(np.atleast_1d(clear), edge)[0] / max(1.0, released.n - 1)
    return int(np.count_nonzero(attributes["explained_variance_"] <= least))


def _center(facts):
    """Return what is subtracted from all rows: public, learnt, or nothing.

    Checkpoints of earlier versions know of no centre that was learnt.
    """
    return facts.get("about") if facts["center"] is None else facts["center"]


def _mean(released, facts):
    """Return the mean of the rows as they came."""
    if facts["center"] is not None:
        return facts["center"]
    about = facts.get("about")
    return released.mean if about is None else about + released.mean


def _released(answers, facts):
    clip_norm, n = facts["clip_norm"], facts["n"]
    n = None if n is None else float(max(1, n))
    if "moment" in answers:
        value, scale = answers["moment"]
        corner = _CORNER * clip_norm if math.isfinite(clip_norm) else 1.0
        return split_moment(value, corner, scale, clip_norm, n)
    if n is None:  # above two deviations of its noise
        n = released_count(*answers["count"])
    mean = np.zeros(facts["d"])
    if "sums" in answers:
        mean = inside_ball(answers["sums"].value / n, clip_norm)
    scatter, scale = answers["gram" if "gram" in answers else "sketch"]
    return ReleasedMoment(scatter, mean, n, scale)


def _from_sketch(released, answers, facts):
    n, Q = released.n, facts["sketch"]
    Y = centered_sketch(released.scatter, Q, released.mean, n)
    total = float(answers["trace"].value) - n * float(released.mean @ released.mean)
    return sketch_attributes(Y, Q, released.noise_scale, total, n, facts["k"])

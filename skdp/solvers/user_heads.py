"""Heads: what each user fits on top of the shared structure, and what users elect.

A `HeadRule` says how far a user may leave the shared subspace, how strongly coefficients and
intercept are shrunk, and towards what. Users compare the rules by their own leave-one-out losses
and send one bounded vote; the result is public. Heads are private to their users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skdp._limits import CLEAR, FloatArray
from skdp.data.factorisations import times_powers
from skdp.solvers.local_fits import LOSSES, LocalFit, RidgePath, UserBatch, softmax, unit
from skdp.solvers.personalization import AsksUsers, GlobalModel, Shared, SumMessage, View, Viewed

# Penalties in units of a mean squared row, and variances of intercepts in the same units. With more
# rules a bad one is more often chosen by chance: five penalties lost .02.
_PENALTIES = (0.1, 1.0)
_FEWEST_ROWS = 3  # of a head: with two, leave-one-out fits have one row and no slope
_OWN_LIMIT = 3.0  # of a user's own deviations: its few rows determine no slope beyond


class HeadRule(NamedTuple):
    """How users fit their heads, on top of the global model (`View.base`) if there is one.

    Attributes
    ----------
    outside : float
        Prior variance outside the subspace relative to inside: 0 stays in it, 1 ignores it, and 2
        ignores it with columns in the user's own units.
    penalty : float
        Ridge penalty, in units of the user's mean squared (mapped) row; inf has no coefficients.
    intercept : float
        Prior variance of the intercept in the same units (without coefficients in units of the
        variance of one row about it): 0 has none, inf is free.
    toward_global, toward_level : float
        Shrink towards so many times the coefficients and the intercepts of the global model,
        instead of zero.
    """

    outside: float
    penalty: float
    intercept: float
    toward_global: float
    toward_level: float = 1.0


AS_ALL = HeadRule(0.0, math.inf, 0.0, True)  # the global model, unchanged


class Choice(NamedTuple):
    """What was decided about heads: the elected rule, or those that users weigh.

    `level` is for users with two rows: the best rule without a head. `lone` is for users with one
    row: the same rule if it is clearly better than the global model, else that model, or half of
    its residual if votes are noise. The `scores` of the rules are log-likelihoods of the votes if
    one is the best.
    """

    rules: tuple[HeadRule, ...]
    level: HeadRule = AS_ALL
    lone: HeadRule = AS_ALL
    scores: float | tuple[float, ...] = 0.0


def outside_variance(shared: Shared) -> float:
    """Ratio of prior variances outside and inside, from the estimated error of the subspace."""
    d, k = shared.U.shape
    if d == k:
        return 1.0  # nothing is outside
    share = min(shared.error, (d - k) / d)
    return round(float(share * k / ((d - k) * (1 - share))), 9)  # 1 if U is no better than random


def fixed_choice(view: View) -> Choice:
    """Return the choice without votes: heads in the subspace, the global model for few rows."""
    return Choice((HeadRule(0.0, _PENALTIES[0], view.variance, view.base is not None),))


def all_rules(shared: Shared, view: View, found: bool = True) -> tuple[HeadRule, ...]:
    """Return the candidates, the same number whatever was released.

    Users who start from a global model (`view.base`) are shrunk towards it. Only a free intercept
    without the subspace goes without the model, which may confuse levels of users with slopes.
    Unless all columns have shown their scales (`found`), rules that ignore the subspace have own
    units.
    """
    based = view.base is not None
    variances = [(0.0, True)] if based else [(0.0, False), (0.0, True)]
    if view.intercept:
        variances += [(_PENALTIES[0], True), (math.inf, based)]
    if view.intercept and view.loss.skewed:  # a shrunk intercept would be drawn to the mean
        variances = [(math.inf, based)]
    heads = tuple(
        HeadRule(outside, penalty, variance, target and not (alone and math.isinf(variance)))
        for outside, alone in ((outside_variance(shared), False), (1.0 if found else 2.0, True))
        for penalty in _PENALTIES
        for variance, target in variances
    )
    # Those without coefficients of one's own: means, shrunk more or hardly (where users differ far
    # more than their rows do), and last the global model.
    levels = (1.0, 10.0) if view.intercept and not view.loss.skewed else ()
    means = [HeadRule(0.0, math.inf, prior, True) for prior in levels]
    return (*heads, *means, AS_ALL)


@dataclass(frozen=True)
class Heads:
    """Fits heads of a batch of users, from public attributes.

    Attributes
    ----------
    view : View
        How users preprocess their rows.
    U : array of shape (d, k)
        The shared subspace, in whitened features.
    model : GlobalModel
        The released global model.
    """

    view: View
    U: FloatArray
    model: GlobalModel

    def _in_own_units(self, batch: UserBatch) -> Viewed:
        """Rows in own units; what is fitted is the same."""
        rows = batch.in_own_units(self.view.intercept)[0]
        return Viewed(self.view, rows, self.view.own_residuals(batch))

    def _path(self, viewed: Viewed, outside: float) -> RidgePath:
        """Ridge fits to rows times UU' + sqrt(r) (I - UU'), which carry the prior variances r.

        Their products are r XX' + (1 - r) XU (XU)': those of all coordinates, and of a few.
        """
        if outside >= 1.0:
            return viewed.path
        Z = viewed.times(self.U)
        return RidgePath.of(Z) if outside == 0 else viewed.path.extended(outside, Z)

    def _coefficients(self, viewed: Viewed, outside: float, path: RidgePath, fit: LocalFit) -> Any:
        """Return coefficients (n, d, p) of whitened rows; in a subspace they are those of XU."""
        if outside == 0:
            return np.matmul(self.U, path.coefficients(fit))
        dense = viewed.moments(fit.dual)
        inside = np.matmul(self.U, np.matmul(self.U.T, dense))
        return inside + min(outside, 1.0) * (dense - inside)

    def _offset(self, batch: UserBatch, rule: HeadRule) -> FloatArray:
        """What the targets that are seen are shrunk towards, in the user's own scale."""
        base = self.view.base
        if base is not None and not rule.toward_global:  # what is seen are residuals of it
            return -base.predictions(batch)
        if base is not None or not rule.toward_global:
            return np.zeros_like(batch.Y)
        return self.model.times(rule.toward_global, rule.toward_level).predictions(batch)

    def _fit(self, batch: UserBatch, viewed: Viewed, path: RidgePath, rule: HeadRule) -> LocalFit:
        penalty = np.full(len(viewed.Y), rule.penalty)
        offset = self._offset(batch, rule)
        return path.fit(viewed.Y, offset, self.view.loss, penalty, rule.intercept)

    def losses(self, batch: UserBatch, rules: Sequence[HeadRule]) -> FloatArray:
        """Mean leave-one-out loss of each rule, and of the zero model last: (n, rules + 1).

        Labels are judged by least squares on their indicators, where leaving out is exact.
        """
        viewed, by_loss = self.view(batch), self.view.loss.judges
        Y = viewed.Y if by_loss else self.view.linear_targets(viewed.Y)
        out = np.empty((len(Y), len(rules) + 1))
        loss = self.view.loss if by_loss else LOSSES["squared"]
        out[:, -1] = loss.losses(Y, np.zeros_like(Y)).mean(axis=1)
        # Without coefficients any path will do.
        groups = [(x.outside if x.penalty < math.inf else 1.0, *x[3:]) for x in rules]
        paths = {
            part: self._path(self._in_own_units(batch) if part > 1 else viewed, part)
            for part in {part for part, *_ in groups}
        }
        for group in set(groups):
            same, path = [i for i, one in enumerate(groups) if one == group], paths[group[0]]
            for i in same if by_loss else []:
                left_out = self._fit(batch, viewed, path, rules[i]).left_out
                out[:, i] = loss.losses(Y, left_out).mean(axis=1)
            if not by_loss:
                priors = np.array([(rules[i].penalty, rules[i].intercept) for i in same]).T
                offset = self._offset(batch, rules[same[0]])
                if self.view.loss.mean is not None:
                    offset = self.view.linear_targets(self.view.loss.mean(offset))
                out[:, same] = path.errors(Y - offset, *priors)
        return out

    def fit(self, batch: UserBatch, choice: Choice) -> tuple[FloatArray, FloatArray]:
        """Fit each user by the elected rules: (n, (d + 1) p), private; and left-out residuals.

        Of several each has the weight exp(m/2 gain + score), m the number of rows: the likelihood
        of normal left-out residuals, and of the votes of all users. The best one alone is often so
        by chance. Users with too few rows for a head have no choice.
        """
        common = self.view(batch)
        n, m, _ = batch.X.shape
        rules, weights = choice.rules, np.ones((n, 1))
        if m < _FEWEST_ROWS:
            rules = (choice.level if m > 1 else choice.lone,)
        elif len(rules) > 1:
            gains = np.nan_to_num(HeadVotes(self, rules).gains(batch))
            weights = softmax((m / 2 * gains + choice.scores)[:, None])[:, 0]
        out: Any = 0.0
        errors = common.Y
        kinds: dict[float, tuple[Viewed, RidgePath]] = {}
        for rule, weight in zip(rules, weights.T, strict=True):
            if rule.outside not in kinds:
                viewed = self._in_own_units(batch) if rule.outside > 1 else common
                kinds[rule.outside] = viewed, self._path(viewed, rule.outside)
            viewed, path = kinds[rule.outside]
            fit = self._fit(batch, viewed, path, rule)
            out = out + weight[:, None] * self._of_rows(batch, viewed, rule, path, fit)
            errors = errors - weight[:, None, None] * fit.left_out
        return np.where(np.isfinite(out).all(axis=1)[:, None], out, 0.0), errors

    def limits(self, batch: UserBatch, choice: Choice, heads: Any, errors: Any) -> FloatArray:
        """Return the least and the largest entries that count for each user, (n, 2, d), private.

        A few rows determine no slope far beyond them, so entries are truncated at a multiple of the
        user's own deviations. Few rows hardly determine these either: their limits are wider, if
        columns have scales of all users. A user has no limits if they clearly raise the left-out
        errors of its own rows beyond them (a likelihood ratio of normal errors, for at least three
        such rows).
        """
        (_, m, d), (rows, means, size) = batch.X.shape, batch.in_own_units(self.view.intercept)
        own_units = max(rule.outside for rule in choice.rules) > 1
        limit = _OWN_LIMIT * (1 if own_units else m / max(m - 2, 1e-9))
        radius, beyond = limit * size, np.asarray((np.abs(rows.X) > limit).any(axis=2))
        users = np.flatnonzero((beyond.sum(axis=1) > 2) & (self.view.loss.mean is None))
        X, beyond, R = rows.X[users], beyond[users], times_powers(errors, batch.y_exponent)[users]
        theta = heads[users, : d * R.shape[2]].reshape(-1, d, R.shape[2])
        cut = R + np.matmul(X - X.clip(-limit, limit), theta * size[users, 0, :, None])
        sse_cut, sse = ((beyond * np.square(A).sum(axis=2)).sum(axis=1) for A in (cut, R))
        radius[users[(beyond.sum(axis=1) - 2) * np.log(sse_cut / sse) > CLEAR**2]] = np.inf
        return np.concatenate([means - radius, means + radius], axis=1)

    def _of_rows(
        self, batch: UserBatch, viewed: Viewed, rule: HeadRule, path: RidgePath, fit: LocalFit
    ) -> FloatArray:
        """Undo own scale and units, and whitener: coefficients and intercepts for all rows."""
        theta, b = viewed.undone(self._coefficients(viewed, rule.outside, path, fit), fit.intercept)
        theta = self.view.coefficients(theta)
        if rule.outside > 1:
            _, means, size = batch.in_own_units(self.view.intercept)
            theta = theta / size[:, 0, :, None]
            b = b - np.matmul(means, theta)[:, 0]
        if rule.toward_global:
            level = viewed.own_means if self.model.own_means else self.model.intercept
            theta, b = theta + self.model.coef, b + level
        return np.concatenate([theta.reshape(len(theta), -1), b], axis=1)


@dataclass(frozen=True)
class HeadVotes(SumMessage):
    """Each user's vote of norm 1 at most: how much better than average each rule does, in logs.

    Users with too few rows for a head compare only the rules without one. The norm of a vote about
    labels is the gain: most users with few rows have a single label, and gain a little by relying
    on it, while the others lose much.
    """

    heads: Heads
    rules: tuple[HeadRule, ...]

    name = "head_rule_votes"

    @property
    def public(self) -> tuple[Any, ...]:
        """Its arrays."""
        model = self.heads.model
        return self.heads.view.whitener, *model.public, self.heads.U, np.array(self.rules, float)

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """One vector."""
        return (((len(self.rules),), 1.0, False),)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the votes, which are cut to norm 1 where they are summed."""
        gains, labels = self.gains(batch), self.heads.view.loss.mean is not None
        # Votes on models of all are scaled down: if cut to norm 1, all users would count alike.
        rows = 2 if self.rules[0].penalty == math.inf else batch.Y.shape[1]
        return gains * (rows / 2) if labels else unit(gains)

    def gains(self, batch: UserBatch) -> FloatArray:
        """Return how much better than average each rule does, in logs (of labels: not)."""
        losses = self.heads.losses(batch, self.rules)
        logs = np.log(losses[:, :-1] + 0.01 * losses[:, -1:])
        if self.heads.view.loss.mean is not None:  # squared errors of labels have a public scale
            logs = losses[:, :-1] / losses[:, -1:]
        # With one row, leave-one-out can score only rules that fit nothing to the rows.
        need = [_FEWEST_ROWS if x.penalty < math.inf else 1 + (x.intercept > 0) for x in self.rules]
        judged = batch.Y.shape[1] >= np.array(need)
        # In a fixed order: that of a sum along an axis in numpy depends on the size of the batch.
        total = sum(logs[:, i : i + 1] for i in np.flatnonzero(judged))
        means = total / max(int(judged.sum()), 1)
        return np.where((losses[:, -1:] > 0) & judged, means - logs, 0.0)


# How many times the coefficients and intercepts of a model of labels may be too small.
_SHRUNK = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 8))


def unshrunk(ask: AsksUsers, heads: Heads, share: float) -> tuple[float, float]:
    """Return the multiple of a global model that votes prefer, or one between them.

    Its logits are too small: a user's few rows would outweigh what all rows show.
    """
    rules = tuple(AS_ALL._replace(toward_global=a, toward_level=b) for a, b in _SHRUNK)
    released = HeadVotes(heads, rules).asked(ask, share=share)
    gaps = (released.value.max() - released.value) / math.hypot(released.noise_scale, 1.0)
    coef, level = np.exp(np.average(np.log(_SHRUNK), axis=0, weights=np.exp(-(gaps**2) / 4)))
    return (float(coef), float(level)) if heads.model.found else (1.0, 1.0)


def elect(
    ask: AsksUsers, heads: Heads, rules: tuple[HeadRule, ...], n: float, share: float
) -> Choice:
    """Elect the rules that users weigh.

    Rules that are not clearly worse than the best one are retained, with the likelihood of the
    votes if they were as good. Noise is not the only uncertainty, because the users are a sample: a
    sum of n unit votes on R rules varies by n/R in each entry. Users with too few rows for a head
    have the best rule without coefficients. Users with one row have it only if it is clearly better
    than the global model. These have no vote. If all votes are noise, there may be no others, and
    half of a residual is a better guess than none.
    """
    released = HeadVotes(heads, rules).asked(ask, share=share)
    votes, noise = released.value, CLEAR * released.noise_scale
    alone = np.array([rule.penalty < math.inf for rule in rules])
    at = int(np.argmax(np.where(alone, -np.inf, votes)))
    error = math.hypot(noise, CLEAR * math.sqrt(n / len(rules)))
    gaps = (votes.max() - votes) / error / math.sqrt(2)
    kept = {rules[i]: float(-((CLEAR * gaps[i]) ** 2) / 2) for i in np.flatnonzero(gaps <= 1)}
    lone = AS_ALL if gaps.max() > CLEAR else rules[int(np.argmin(alone))]
    few = rules[at], rules[at] if votes[at] > votes[-1] + math.sqrt(2) * noise else lone
    return Choice(tuple(kept), *few, tuple(kept.values()))


def predicts_one_class(model: GlobalModel) -> bool:
    """Whether hardly a row has scores that differ as much as the intercepts do.

    Columns have spreads of about 1, and deviations of 1.5.
    """
    coef, b = model.coef, model.intercept
    if len(b) == 1:
        coef, b = np.hstack([0 * coef, coef]), np.append(0.0, b)
    top = int(np.argmax(b))
    lengths = np.linalg.norm(np.delete(coef - coef[:, [top]], top, axis=1), axis=0)
    return bool(np.all(np.delete(b[top] - b, top) > 1.5 * CLEAR * lengths))

"""A plan is a rehearsal of the fit: the same code, on a session that pays and reads nothing.

What is paid, in which order, with which share and noise scale, comes from the fit itself. Answers
are noise alone, apart from a few that ordinary data give for certain (`_ordinary`): the planned
number of units, and a median size of one, so that learnt clip levels are in units of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.exceptions import PrivacyWarning
from skdp.privacy.accounting.losses import epsilon_from_mu_delta, mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import LedgerEntry, cautions
from skdp.privacy.gate.bounds import Bound, Bounded, Path
from skdp.privacy.gate.session import SHARE_SLIP, Grant, PrivacySession
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import SeededSource, Words
from skdp.privacy.streams.continual import stream_schedule
from skdp.theory._plan import Expectation, FitPlan, PlannedRelease, check_counts

FloatArray = NDArray[np.float64]
# What ordinary data answer: (planned number of units, noise alone, public arguments) -> value.
Ordinary = Callable[..., Any]
_CLEAR = 1e4  # noise scales from which an answer leaves no doubt
_TILE = 65537  # noise repeats after so many numbers: a prime, so that no columns are alike


class _Over(Exception):
    """The whole budget is paid: what follows in a fit is free."""


def _count(n: float, _noise: Answer) -> float:
    return n


def _rank(n: float, noise: Answer, threshold: Any, *_public: Any) -> Any:
    """Rank of thresholds among sizes that end at 1, whatever the noise is."""
    return (n + _CLEAR * noise.noise_scale) * np.where(np.greater_equal(threshold, 1.0), 0.5, -0.5)


def _above(n: float, noise: Answer, threshold: float) -> float:
    """How many of these sizes exceed a threshold, as clearly: all or none."""
    return (n + _CLEAR * noise.noise_scale) * (1.0 if threshold < 1.0 else -1.0)


def _ordinary(name: str) -> Ordinary | None:
    """Return what ordinary data answer to a question of this name; None is noise alone."""
    if name.endswith("_below") or name == "ranks":
        return _rank
    return _above if name.endswith("_above") else _count if name == "count" else None


def ranks_about(length: float) -> dict[str, Ordinary]:
    """Return what rows whose norms end at a public length answer."""

    def below(n: float, noise: Answer, threshold: float) -> Any:
        return _rank(n, noise, threshold / length)

    def above(n: float, noise: Answer, threshold: float) -> float:
        return _above(n, noise, threshold / length)

    return {"kept_below": below, "norms_above": above}


def clear_sums(_n: float, noise: Answer, *_public: Any) -> FloatArray:
    """Sums of columns that can all be read, some more than others; by request, see `rehearse`."""
    d = len(noise.value)
    return np.asarray(100 * noise.noise_scale * (1 + np.arange(d, 0, -1) / d))


@cache
def _tile() -> FloatArray:
    words = SeededSource(0, "skdp.rehearsal").words("noise")
    drawn = noise.integer_gaussian(words, (_TILE,), noise.LEVELS)
    return np.asarray(drawn / noise.EFFECTIVE_SIGMA)


class _RehearsalSource(SeededSource):
    """Words that are the same each time, until everything is paid."""

    def __init__(self, session: _RehearsalSession) -> None:
        super().__init__(0, "skdp.rehearsal")
        self.session = session

    def words(self, *public_key: Any) -> Words:
        """Return words; what is drawn after the last payment is nobody's business."""
        self.session.end_if_paid()
        return super().words(*public_key)


class _RehearsalSession(PrivacySession):
    """The gate of a rehearsal: it pays for each release, and no query's closure ever runs."""

    most_rows = 256  # of a sketch whose bound does not depend on their number

    def __init__(self, *args: Any, n: float, ordinary: Mapping[str, Ordinary], **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.source = _RehearsalSource(self)
        self.paid: list[PlannedRelease] = []
        self.narrowed: dict[str, tuple[Any, ...]] = {}
        self._n, self._answers, self._size = n, ordinary, 0

    def answer(self, path: Path, bounded: Bounded, share: float) -> Any:
        """Answer one question as ordinary data would."""
        *narrowed, (name, public) = path
        for step, arguments in narrowed:
            self.narrowed.setdefault(step, arguments)
        if bounded.bound.linf is not None:
            return self.choose(bounded, share)
        answer = self.release(bounded, share)
        ordinary = self._answers.get(name) or _ordinary(name)
        if ordinary is None:
            return answer
        return answer._replace(value=answer.value + ordinary(self._n, answer, *public))

    def release(self, bounded: Bounded, share: float) -> Answer:
        """Pay; answer with noise alone."""
        grant = self.grant(bounded.bound, share)
        self.end_if_paid()
        if grant.bound.cells:  # flips of no ones would be as many as their cells
            return Answer(sp.csr_array(grant.bound.shape), grant.noise_scale)
        shape, start = grant.bound.shape, 4099 * grant.serial % _TILE
        value = grant.noise_scale * np.resize(np.roll(_tile(), -start), shape)
        if grant.bound.symmetric:
            value = (value + value.T) / 2
        return Answer(value, grant.noise_scale)

    def _read(self, _answer: Callable[[float], NDArray[Any]], grant: Grant) -> NDArray[Any]:
        return np.zeros(grant.bound.shape, np.int64 if grant.step else np.float64)

    def affordable(self, bound: Bound, *args: Any, **kw: Any) -> float:
        """Note the size of what is about to be paid."""
        self._size = bound.size
        return super().affordable(bound, *args, **kw)

    def pay(self, line: LedgerEntry, share: float, kind: str = "gaussian", draws: int = 0) -> None:
        """Pay, and note the share."""
        super().pay(line, share, kind, draws)
        share *= self._part(kind)
        scales = float(line.sensitivity), line.noise_scale
        self.paid.append(PlannedRelease(line.name, 1, share, *scales, self._size))

    def _part(self, kind: str) -> float:
        """Return the part of epsilon that a kind of releases has."""
        budget = self.budget
        if budget.exact or not (budget.mu and budget.pure_epsilon):
            return 1.0
        pure = budget.pure_epsilon / budget.epsilon
        return pure if kind == "pure" else 1 - pure

    def end_if_paid(self) -> None:
        """End the rehearsal once nothing is left to be paid."""
        budget = self.budget
        kinds = ["pure"] if budget.pure else ["gaussian", *["pure"] * (budget.pure_epsilon > 0)]
        if all(self.left(kind) <= SHARE_SLIP for kind in kinds):
            raise _Over


@dataclass(frozen=True)
class Rehearsal:
    """What a fit would pay for.

    Attributes
    ----------
    estimator, guarantee : str
        Whose fit, and what it would satisfy.
    mu : float
        Gaussian-DP parameter of the budget; 0 where the fit is not made of Gaussians.
    law : str
        Law of the noise: "gaussian", "laplace" or "exact".
    lines : tuple of PlannedRelease
        The releases in their order, one by one.
    narrowed : mapping
        First public arguments of each narrowing, as ("clipped", (1.0,)), by name.

    Examples
    --------
    >>> from skdp import DPPCA
    >>> from skdp.theory import rehearse, zero_rows
    >>> rehearsal = rehearse(DPPCA(1, clip_norm=2.0), 1000, zero_rows(1000, 4))
    >>> count = rehearsal.named("count")[0]
    >>> count.times, count.share, count.sensitivity
    (1, 0.01, 1.0)
    """

    estimator: str
    guarantee: str
    cautions: tuple[str, ...]
    mu: float
    law: str
    lines: tuple[PlannedRelease, ...]
    narrowed: Mapping[str, tuple[Any, ...]]

    def named(self, *names: str) -> list[PlannedRelease]:
        """Return the releases of some names, in their order."""
        return [line for line in self.lines if line.name in names]

    def clip_norm(self, given: float | str, name: str = "clipped") -> tuple[float, str]:
        """Return the clip norm that was rehearsed, and the unit of all noise scales.

        `given` is the parameter, `name` that of the narrowing which used it.
        """
        used = float(self.narrowed[name][0]) if name in self.narrowed else 1.0
        if not isinstance(given, str):
            return (used if math.isfinite(used) else 1.0), "1"
        return used, "clip_norm" if used == 1.0 else "the median norm of the rows"

    def plan(self, n: int, d: int, expected: Expectation, unit: str = "1") -> FitPlan:
        """Return the plan: what was rehearsed, and what theory expects of it."""
        return FitPlan(
            estimator=self.estimator,
            n_samples=n,
            n_features=d,
            guarantee=self.guarantee,
            cautions=self.cautions,
            mu=self.mu,
            unit=unit,
            error=expected.error(n),
            meaning=expected.meaning,
            found=expected.found,
            signal=expected.signal,
            assumptions=expected.assumptions,
            releases=_grouped(self.lines),
            needed=0 if self.law == "exact" else expected.needed(),
            expected=expected,
        )


def rehearse(
    estimator: Any,
    n: int,
    *data: Any,
    act: Callable[..., object] | None = None,
    pure: bool = False,
    **ordinary: Ordinary,
) -> Rehearsal:
    """Run the releases of a fit on nothing; no ledger is charged, and the estimator not touched.

    Parameters
    ----------
    estimator : estimator
        Its parameters are taken by a bare copy.
    n : int
        Number of units (rows, users, ...) that ordinary data have.
    *data : object
        What the fit is handed: a public shape, whose numbers are never read.
    act : callable or None
        ``act(copy, session, *data)`` makes the releases; None is the method `_fit_session`.
    pure : bool
        Whether the fit spends no delta, whatever the parameter says.
    **ordinary : callable
        Name of a method of the query -> what ordinary data answer, from ``(n, noise, *public)``.

    Returns
    -------
    Rehearsal

    Examples
    --------
    >>> from skdp import DPTruncatedSVD
    >>> from skdp.theory import rehearse, zero_rows
    >>> svd = DPTruncatedSVD(2, privacy_unit="entry", algorithm="alternating", n_iter=1)
    >>> rehearsal = rehearse(svd, 400, zero_rows(400, 12, sparse=True))
    >>> [line.name for line in rehearsal.lines]
    ['right_product', 'left_product', 'core', 'left_product', 'trace']
    """
    check_counts(estimator, n_samples=n)
    act = type(estimator)._fit_session if act is None else act
    copy = without_names(estimator)
    kind = partial(_RehearsalSession, n=n, ordinary=ordinary)
    session = copy._checked_session(kind=kind, pure=pure)
    with suppress(_Over), warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # of what noise alone would show
        act(copy, session, *data)
    budget = session.budget
    guarantee = f"epsilon={budget.epsilon:g}, delta={budget.delta:g}, unit {session.unit}"
    guarantee += f", {session.adjacency}"
    name = type(estimator).__name__
    weak = cautions(budget.epsilon, budget.delta, session.unit, n)
    paid = tuple(session.paid)
    return Rehearsal(name, guarantee, weak, budget.mu, session.law, paid, session.narrowed)


def without_names(estimator: Any) -> Any:
    """Return a copy whose `bounds` by column name stand in their order: here are no names."""
    copy = type(estimator)(**estimator.get_params(deep=False))
    if isinstance(bounds := getattr(copy, "bounds", None), Mapping):
        copy.bounds = [tuple(np.ravel(pair).tolist()) for pair in bounds.values()]
    return copy


def last_noise(
    line: PlannedRelease, horizon: int, mechanism: str, window: int | None = None
) -> float:
    """Return the noise of the last release of a rehearsed stream, which is the largest."""
    schedule = stream_schedule(line.size, horizon, mechanism, window if horizon > 1 else None)
    return line.noise_scale * schedule.unit * schedule.noise_factor(horizon)


def _grouped(lines: tuple[PlannedRelease, ...]) -> tuple[PlannedRelease, ...]:
    """Put equal shares of one name together, with the largest noise among them."""
    groups: dict[tuple[str, float], PlannedRelease] = {}
    for line in lines:
        key = line.name, float(f"{line.share:.6g}")
        seen = groups.get(key, replace(line, times=0, share=0.0))
        groups[key] = replace(
            seen,
            times=seen.times + 1,
            share=seen.share + line.share,
            sensitivity=max(seen.sensitivity, line.sensitivity),
            noise_scale=max(seen.noise_scale, line.noise_scale),
            size=max(seen.size, line.size),
        )
    return tuple(groups.values())


# Made histories: binary rows with heavy-tailed columns and lengths, drawn from public numbers.


_SPREAD_OF_LENGTHS = 0.9  # deviation of their logarithm
# Of matrices that plans are made with: between blocks of tastes and popularity alone.
_TASTES, _OVERLAP, _SPREAD, TAIL = 40, 0.25, 3.0, 0.65


def planned_histories(
    n: int, d: int, nnz: int, tail: float = TAIL, seed: int = 0, *, apart: int = 0
) -> Any:
    """Return the matrix of 0 and 1 that stands for sparse data of a public size.

    Parameters
    ----------
    n, d : int
        Its shape.
    nnz : int
        Number of its ones, which is reached up to repeated draws.
    tail : float
        The column of rank i is drawn with weight ``i ** -tail``.
    seed : int
        Which of such matrices.
    apart : int
        So many tastes that share no column, of which a row has one; 0 are tastes that overlap, and
        rows that mix them.

    Returns
    -------
    X : csr_array of shape (n, d)
        The same for the same arguments.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, d + 1.0) ** -tail)
    activity, most, size = _activity(rng, n), max(1, d // 2), 0.0
    for _ in range(8):  # what the longest rows cannot hold goes to the others
        lengths = np.minimum(np.rint((size or nnz / n) * activity), most)
        size = (size or nnz / n) * nnz / max(float(lengths.sum()), 1.0)
    if apart:
        return apart_histories(rng, lengths.astype(np.int64), popularity, apart, overlap=_OVERLAP)
    options = {"overlap": _OVERLAP, "spread": _SPREAD}
    return drawn_histories(rng, lengths.astype(np.int64), popularity, _TASTES, **options)


def thinned_epsilon(epsilon: float, delta: float, behind: float) -> float:
    """Return the epsilon at which noise is smaller by so much as there are fewer rows."""
    mu = mu_from_epsilon_delta(float(epsilon), float(delta))
    return epsilon_from_mu_delta(mu * behind, float(delta))


def _activity(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    activity = np.exp(_SPREAD_OF_LENGTHS * rng.standard_normal(n))
    return np.asarray(activity / activity.mean())


def drawn_lengths(
    rng: np.random.Generator, n: int, mean_length: float, most: int
) -> NDArray[np.int64]:
    """Draw log-normal numbers of items about a mean, from 2 to `most`."""
    lengths = np.rint(mean_length * _activity(rng, n))
    return np.clip(lengths, 2, max(2, most)).astype(np.int64)


def drawn_histories(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: NDArray[np.float64],
    n_tastes: int,
    *,
    overlap: float,
    spread: float,
) -> Any:
    """Draw the items of histories: popularity, and tastes that users mix (see `make_histories`)."""
    users = _users_of_draws(lengths)
    mixes = rng.gamma(0.2, size=(len(lengths), n_tastes)) + 1e-9
    edges = np.cumsum(mixes / mixes.sum(axis=1, keepdims=True), axis=1)
    tastes = _taste_of_draw(edges, users, rng)

    def items_of(_: int, n: int) -> NDArray[np.int64]:
        return drawn(popularity * np.exp(spread * rng.standard_normal(len(popularity))), n, rng)

    return _of_tastes(rng, lengths, popularity, overlap, tastes, items_of)


def apart_histories(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: NDArray[np.float64],
    n_tastes: int,
    *,
    overlap: float,
) -> Any:
    """Draw the items of histories of one taste each, which is a part of the items."""
    taste_of_item = rng.permutation(len(popularity)) % n_tastes
    tastes = rng.integers(0, n_tastes, len(lengths))[_users_of_draws(lengths)]

    def items_of(taste: int, n: int) -> NDArray[np.int64]:
        members = np.flatnonzero(taste_of_item == taste)
        return np.asarray(members[drawn(popularity[members], n, rng)])

    return _of_tastes(rng, lengths, popularity, overlap, tastes, items_of)


def _users_of_draws(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the user of each draw: more than a history has, as some items are drawn again."""
    return np.repeat(np.arange(len(lengths)), np.ceil(lengths * 1.6).astype(np.int64) + 3)


def _of_tastes(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: NDArray[np.float64],
    overlap: float,
    tastes: NDArray[np.int64],
    items_of: Callable[[int, int], NDArray[np.int64]],
) -> Any:
    """Draw a share `overlap` of the items by popularity alone, the others by the draw's taste."""
    users = _users_of_draws(lengths)
    items = drawn(popularity, len(users), rng)
    own = rng.random(len(users)) >= overlap
    for taste in range(int(tastes.max(initial=-1)) + 1):
        mine = np.flatnonzero(own & (tastes == taste))
        items[mine] = items_of(taste, len(mine))
    return first_distinct(users, items, lengths, (len(lengths), len(popularity)))


def _taste_of_draw(
    edges: NDArray[np.float64], users: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a taste for each draw of a user, from the user's mix (cumulative shares)."""
    words = rng.random(len(users))
    tastes = np.zeros(len(users), np.int64)
    for edge in edges[:, :-1].T:
        tastes += words > edge[users]
    return tastes


def drawn(weights: NDArray[np.float64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return indices drawn with probability proportional to the weights."""
    edges = np.cumsum(weights)
    found = np.searchsorted(edges, rng.random(size) * edges[-1])
    return np.minimum(found, len(weights) - 1)


def first_distinct(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    degrees: NDArray[np.int64],
    shape: tuple[int, int],
) -> Any:
    """Return binary rows of each user's first distinct items, up to the user's degree."""
    _, first = np.unique(users * shape[1] + items, return_index=True)
    first.sort()
    users, items = users[first], items[first]
    rank = np.arange(len(users)) - np.searchsorted(users, users, "left")
    kept = rank < degrees[users]
    ones = np.ones(np.count_nonzero(kept))
    R = sp.csr_array((ones, (users[kept], items[kept])), shape=shape)
    R.sort_indices()
    return R

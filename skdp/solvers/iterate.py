"""Power iteration on noisy products, where each step uses every answer so far.

Notation: A is the private m x n matrix, seen only through `ask`; X (n x p) and U (m x p) are public
iterates with orthonormal columns; Q is the query that was sent (a shortened iterate); an answer Y
is A Q plus noise of standard deviation s.

Five ideas, all of them functions of public values:

- *Posterior mean* (`Transcript`): with entries of A of variance t before anything is known, the
  mean of A X given all answers is Y (Q'Q + diag(s^2)/t)^-1 Q'X. Where noise is large this is
  proportional to sum_i Y_i Q_i'X / s_i^2, which averages the noise of all steps; where it is small
  it is exact on all that was asked, and the result is that of a Krylov space.
- *Shortened rows* (`shorten_rows`): the noise is set by the longest rows of the query, so rows
  longer than sqrt(c p / n) are cut; the query keeps most of its direction at less of the noise.
  c grows without bound as the noise vanishes.
- *Late columns*: more columns than are wanted cost noise, and help where the spectrum falls slowly.
  They join when answers show that, up to all there are, which is one query for what is left.
- *Joint mean*: where the spectrum falls slowly the result is read from all answers of both sides.
- *Agreement*: in symmetric iterations early answers share noise with the iterate they led to;
  answers whose column space does not agree with the last one are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.linalg import leading_eigenvectors, orthonormal

# What all answers of an iteration say of a matrix together, and how wide a query may be.
#
# Notation: A is m x n. Answers to queries from the right are Y = A Q plus noise, those from the
# left Z = A'U plus noise; W holds one over the variance of the noise of each column, t is the
# variance of an entry of A before anything is known.


FloatArray = NDArray[np.float64]
_SEEN = 6.0  # times the edge of the noise that the weakest direction must stand out of it
_LEAST_NOISE = 1e-9  # of an answer: noise below it is none


class Sent(NamedTuple):
    """One step of a transcript: query, answer, noise scale."""

    query: FloatArray
    answer: FloatArray
    noise_scale: float


class Shown(NamedTuple):
    """What the last answer of one side shows.

    Attributes
    ----------
    noise : float
        Share of the noise in an entry of it, in the weakest direction that is wanted.
    longest : float
        Squared length of the longest row of its query, which the noise follows.
    shape : tuple of int
        Rows of the query, rows of the answer.
    """

    noise: float
    longest: float
    shape: tuple[int, int]


def more_columns(sides: Sequence[Shown], width: int, most: int, n_left: int) -> int:
    """Return how many random columns can join a query of `width`, at most `most`.

    More of them find more of a spectrum that falls slowly. They make the longest row longer, and
    the edge of the noise follows the width: what is wanted must stay well above it in the mean of
    the answers that are left.
    """
    widths = width + np.arange(1, most + 1)
    fits = np.ones(most, bool)
    for noise, longest, (n_rows, n_answers) in sides:
        louder = 1 + (widths - width) / (n_rows * max(longest, 1e-300))
        signal = n_left * (1 - noise) / max(noise, 1e-300) / louder
        fits &= signal >= _SEEN * np.sqrt(widths / n_answers)
    return int(np.argmin(fits)) if not fits.all() else most


def joint_leading(
    rights: Sequence[Sent], lefts: Sequence[Sent], variance: float, k: int
) -> tuple[FloatArray, FloatArray]:
    """Return the k leading left and right singular vectors of the posterior mean of A.

    The mean solves A QWQ' + UWU' A + A/t = YWQ' + UWZ'; in the eigenvectors of QWQ' and UWU' each
    entry is divided by a number. Beyond the span of the queries it is zero.
    """
    g, B, G = _weighted(lefts)  # of the queries from the left, and their answers
    h, C, H = _weighted(rights)
    inner = (B.T @ H + G.T @ C) / (g[:, None] + h + 1 / variance)
    D, R = np.linalg.qr((H - B @ (B.T @ H)) / (h + 1 / variance))
    E, S = np.linalg.qr((G - C @ (C.T @ G)) / (g + 1 / variance))
    core = np.block([[inner, S.T], [R, np.zeros((len(R), len(S)))]])
    P, _, Q = np.linalg.svd(core)
    left, right = np.hstack([B, D]), np.hstack([C, E])
    return left @ P[:, :k], right @ Q[:k].T


def _weighted(sent: Sequence[Sent]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return eigenpairs (h, C) of QWQ', and YWQ'C."""
    weights = [1 / max(step.noise_scale, _LEAST_NOISE * _size(step.answer)) for step in sent]
    Q = np.hstack([w * step.query for w, step in zip(weights, sent, strict=True)])
    Y = np.hstack([w * step.answer for w, step in zip(weights, sent, strict=True)])
    C, roots, W = np.linalg.svd(Q, full_matrices=False)
    return roots**2, C, Y @ (W.T * roots)


def _size(answer: FloatArray) -> float:
    return max(float(np.sqrt(np.mean(answer**2))), 1e-290)


_AGREEMENT = 0.1  # mean squared cosine above chance that an earlier answer needs
_SHORTEN = 0.25  # rows of a query, in squared mean lengths, where all is noise
_BLIND = 0.98  # of the last answer is noise: what cut rows would show is not seen anyway
QUIET = 0.1  # of the last answer is noise: then more columns help
_PRIOR = 0.03  # of the signal in the last answer: what was asked for besides is weaker
_WEAK = 3.0  # times the signal in the last answer: prior of the joint mean
_SLOW = 0.25  # of the signal of the last wanted direction in the one behind it: no gap
_CLEAR = 1e-3  # of the last answer is noise: then its law does not matter
_LEAST = 1e-3  # of the variance of the noise: prior where no signal is seen
_MOST_ASKED = 1000  # columns of all queries that are still to be sent: each step solves for them
_RIDGE = 1e-13  # rounding of queries that repeat each other


class AsksProducts(Protocol):
    """What the iterations ask for: noisy products with public matrices."""

    def right(self, X: FloatArray, *, share: float) -> Answer:
        """Return A X plus noise."""
        ...

    def left(self, U: FloatArray, *, share: float) -> Answer:
        """Return A'U plus noise."""
        ...


class AsksRitz(Protocol):
    """What Rayleigh-Ritz asks for."""

    def ritz(self, X: FloatArray, *, share: float) -> Answer:
        """Return X'A X plus symmetric noise."""
        ...


Step = Callable[["Transcript", FloatArray], FloatArray]
Project = Callable[[FloatArray], FloatArray]


def shorten_rows(X: FloatArray, c: float) -> FloatArray:
    """Cut rows of X longer than sqrt(c p / n), then rescale to the norm of X; inf leaves X."""
    if math.isinf(c):
        return X
    n, p = X.shape
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    Q = X * np.minimum(1.0, np.sqrt(c * p / n) / np.maximum(lengths, 1e-300))
    size = np.linalg.norm(Q)
    return np.asarray(Q * (np.sqrt(p) / size) if size > 0 else X)


class Transcript:
    """The queries and answers of one side so far, and what they say of A.

    Parameters
    ----------
    wanted : int
        Number of directions that the signal is judged by.
    agreement : float or None
        Leave out answers that agree less with the last one; None keeps all.
    """

    def __init__(self, wanted: int, agreement: float | None = None) -> None:
        self.sent: list[Sent] = []
        self._wanted, self._agreement = wanted, agreement
        self._gram = np.zeros((0, 0))

    def add(self, sent: Sent) -> None:
        """Note one more answer."""
        cross = np.vstack([step.query.T @ sent.query for step in [*self.sent, sent]])
        old = len(self._gram)
        gram = np.empty((len(cross), len(cross)))
        gram[:old, :old] = self._gram
        gram[:, old:], gram[old:, :old] = cross, cross[:old].T
        self._gram = gram
        self.sent.append(sent)

    def used(self) -> list[int]:
        """Return the numbers of the answers worth using."""
        last = self.sent[-1]
        numbers = range(len(self.sent))
        if self._agreement is None:
            return list(numbers)
        basis, p = orthonormal(last.answer), last.answer.shape[1]

        def agrees(step: Sent) -> bool:
            overlap = np.sum((orthonormal(step.answer).T @ basis) ** 2) / min(
                p, step.answer.shape[1]
            )
            return bool(overlap > (self._agreement or 0.0) + p / len(step.answer))

        return [i for i in numbers if self.sent[i] is last or agrees(self.sent[i])]

    def signal(self, which: int | None = None) -> float:
        """Return the variance of an entry of the last answer beyond its noise.

        Of one direction, the weakest that is wanted; directions of pure noise reach the edge that
        is taken off.
        """
        which = which or self._wanted
        answer, scale = self.sent[-1].answer, self.sent[-1].noise_scale
        m, p = answer.shape
        powers = np.linalg.eigvalsh(answer.T @ answer)[::-1] / m
        edge = (scale * (1 + math.sqrt(p / m))) ** 2
        return max(float(powers[min(which, p) - 1]) - edge, 0.0)

    def beyond(self) -> float:
        """Return the signal of the direction behind those that are wanted, over the last one's."""
        wanted, width = self.signal(), self.sent[-1].answer.shape[1]
        seen = wanted > 0 and width > self._wanted
        return self.signal(self._wanted + 1) / wanted if seen else 0.0

    def noise_fraction(self) -> float:
        """Return the share of the noise in the last answer: 1 where nothing else is seen."""
        noise = self.sent[-1].noise_scale ** 2
        return noise / (noise + self.signal()) if noise > 0 else 0.0

    def _posterior(self) -> tuple[list[Sent], FloatArray]:
        """Return the used answers, and Q'Q + diag(s^2)/t of their queries."""
        used = self.used()
        ends = np.cumsum([0] + [step.query.shape[1] for step in self.sent])
        columns = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in used])
        steps = [self.sent[i] for i in used]
        noise = np.concatenate([np.full(s.query.shape[1], s.noise_scale**2) for s in steps])
        G = self._gram[np.ix_(columns, columns)]
        ridge = noise / max(_PRIOR * self.signal(), _LEAST * float(noise.min()), 1e-300)
        G[np.diag_indices(len(G))] += ridge + _RIDGE * max(float(np.trace(G)), 1e-300)
        return steps, G

    def times(self, X: FloatArray) -> FloatArray:
        """Return the posterior mean of A X."""
        steps, G = self._posterior()
        weights = np.linalg.solve(G, np.vstack([step.query.T @ X for step in steps]))
        total = np.zeros((len(steps[0].answer), X.shape[1]))
        for step in steps:
            total += step.answer @ weights[: step.query.shape[1]]
            weights = weights[step.query.shape[1] :]
        return total

    def leading(self, p: int) -> FloatArray:
        """Return the p leading left singular vectors of the posterior mean of A."""
        steps, G = self._posterior()
        R: FloatArray = np.linalg.qr(np.hstack([step.query for step in steps]))[1]
        Y = np.hstack([step.answer for step in steps])
        return np.asarray(np.linalg.svd(Y @ np.linalg.solve(G, R.T), full_matrices=False)[0][:, :p])


def posterior_step(transcript: Transcript, X: FloatArray) -> FloatArray:
    """Return the posterior mean of A X under Gaussian noise."""
    return transcript.times(X)


def laplace_step(transcript: Transcript, X: FloatArray) -> FloatArray:
    """Estimate A X for one column under Laplace noise: much of the information is in the signs.

    For each coordinate u it returns the minimum of u^2/2 + sum_i |y_i - a_i u| / b_i, with b_i the
    Laplace scales and a_i the amplitudes, the last of them from the released answer. Where there
    is little noise the mean is as good, and exact in the limit.
    """
    if transcript.noise_fraction() < _CLEAR:
        return transcript.times(X)
    used = [transcript.sent[i] for i in transcript.used()]
    b = np.array([step.noise_scale / math.sqrt(2) for step in used])
    power = float(np.mean(used[-1].answer ** 2)) - 2 * b[-1] ** 2
    overlaps = np.array([float((step.query.T @ X)[0, 0]) for step in used])
    a = np.sqrt(max(power, 1e-3 * b[-1] ** 2)) * overlaps / overlaps[-1]
    return _laplace_mode(np.hstack([step.answer for step in used]), a, b)[:, None]


def _laplace_mode(Y: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """Minimise u^2/2 + sum_i |y_i - a_i u| / b_i for each row of Y, by bisection."""
    high = np.full(len(Y), float(np.sum(np.abs(a) / b)))
    low = -high
    for _ in range(50):
        u = (low + high) / 2
        rising = u - np.sign(Y - u[:, None] * a) @ (a / b) > 0
        high = np.where(rising, u, high)
        low = np.where(rising, low, u)
    return np.asarray((low + high) / 2)


def _unchanged(Y: FloatArray) -> FloatArray:
    return Y


class _Side:
    """One side of an iteration: the iterate that is sent, and the answers to it."""

    def __init__(
        self, late: FloatArray, wanted: int, agreement: float | None, step: Step,
        sent: Project, seen: Project, *, spread: bool = True,
    ) -> None:  # fmt: skip
        self.transcript = Transcript(wanted, agreement)
        self._spread, self._late, self._step = spread, late, step
        self._sent, self._seen = sent, seen
        self.noise, self.wide = 1.0, False

    def ask(self, product: Callable[..., Answer], X: FloatArray, share: float) -> FloatArray:
        """Send X, and return a basis of its image."""
        Q = X if _whole(X) else self._sent(shorten_rows(X, self._longest()))
        answer = product(Q, share=share)
        self.transcript.add(Sent(Q, self._seen(answer.value), answer.noise_scale))
        self.noise = self.transcript.noise_fraction()
        return orthonormal(self._seen(self._step(self.transcript, X)))

    def _longest(self) -> float:
        """Return where rows of a query are cut: less noise, for a bias where few rows hold much.

        The noise follows the longest row. Signal that is spread loses little; otherwise rows are
        cut only as long as answers show nothing.
        """
        if not self._spread and self.noise < _BLIND:
            return math.inf
        return float(_SHORTEN / max(self.noise, 1e-15) ** 0.5)

    def shown(self) -> Shown:
        """Return what the last answer shows."""
        query, answer, _ = self.transcript.sent[-1]
        longest = float((query**2).sum(axis=1).max())
        return Shown(self.noise, longest, (len(query), len(answer)))

    def widened(self, X: FloatArray, n_left: int, *others: _Side) -> FloatArray:
        """Return X with as many late columns as the answers that are left can bear."""
        sides = [side.shown() for side in (self, *others)]
        seen = max(side.transcript.beyond() for side in (self, *others))
        most = min(self._late.shape[1], max(X.shape[1], _MOST_ASKED // n_left))
        if not self.wide:
            most = min(most, X.shape[1])
        elif seen <= _SLOW:
            return X
        return self.joined(X, more_columns(sides, X.shape[1], most, n_left))

    def joined(self, X: FloatArray, more: int) -> FloatArray:
        """Return X with the next late columns."""
        if min(more, self._late.shape[1]) == 0:
            return X
        self.wide = True
        joined, self._late = self._late[:, :more], self._late[:, more:]
        return orthonormal(np.hstack([X, self._sent(joined)]))

    @property
    def slow(self) -> bool:
        """Whether the spectrum is seen to fall slowly: then all answers beat the last iterate."""
        return (self.wide or self.noise <= QUIET) and self.transcript.beyond() > _SLOW

    def variance(self) -> float:
        """Return what is assumed of an entry of A: the joint mean must not fade weak directions."""
        noise = min(step.noise_scale for step in self.transcript.sent) ** 2
        return max(_WEAK * self.transcript.signal(), QUIET * noise, 1e-300)

    def result(self, X: FloatArray, wanted: int) -> FloatArray:
        """Return the leading directions of all that was asked; X where much of it is noise."""
        return X if self.noise > QUIET else self.transcript.leading(wanted)

    def again(self, X: FloatArray) -> FloatArray:
        """Return the leading left directions of one more step, which no release is needed for."""
        image = self._seen(self._step(self.transcript, X))
        return np.asarray(np.linalg.svd(image, full_matrices=False)[0])


def symmetric_power(
    ask: AsksProducts,
    start: FloatArray,
    n_iter: int,
    share: float,
    *,
    wanted: int | None = None,
    first: int | None = None,
    project: Project = _unchanged,
    step: Step = posterior_step,
    spread: bool = True,
) -> FloatArray:
    """Return a basis of the leading subspace of a symmetric A, from `n_iter` equal releases.

    The `first` columns of `start` (all) are sent at once, the others join when little of the last
    answer is noise; `wanted` (all) directions are returned. `project` is a public linear
    map (a direction taken out), of queries and answers. With ``spread=False`` few rows may hold
    most of the signal: they are cut only as long as answers are noise, and all answers are used.
    """
    first = start.shape[1] if first is None else first
    wanted = first if wanted is None else wanted
    agreement = _AGREEMENT if spread else None
    side = _Side(start[:, first:], wanted, agreement, step, project, project, spread=spread)
    X = orthonormal(project(start[:, :first]))
    for i in range(n_iter):
        X = side.ask(ask.right, X, share / n_iter)
        if i < n_iter - 1 and side.noise <= QUIET:
            X = side.joined(X, start.shape[1])
    if X.shape[1] > wanted:  # which are the leading ones is told better by all answers than by one
        X = side.again(X)[:, :wanted]
    return side.result(X, wanted)


def half_steps(
    ask: AsksProducts,
    start: FloatArray,
    n_passes: int,
    share: float,
    *,
    wanted: int | None = None,
    first: int | None = None,
    step: Step = posterior_step,
    across: tuple[FloatArray, FloatArray] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Find bases of the leading left and right subspaces of A by 2 `n_passes` releases.

    Answers of A and of A' share no noise, so all are used. Columns join as in `symmetric_power`,
    as many as noise allows, once it is little. With ``across=(U, V)``, public with orthonormal
    columns, the result lies across them (deflation).
    """
    left = _across(across[0]) if across else _unchanged
    right = _across(across[1]) if across else _unchanged
    first = start.shape[1] if first is None else first
    wanted = first if wanted is None else wanted
    forward = _Side(start[:, first:], wanted, None, step, right, left)
    backward = _Side(start[:, :0], wanted, None, step, left, right)
    V = orthonormal(right(start[:, :first]))
    U, each = V, share / (2 * n_passes)
    for n_left in range(n_passes - 1, -1, -1):
        rest = 2 * each * (n_left + 1)
        if forward.wide and _whole(V):
            forward.ask(ask.right, V, rest)
            break
        U = forward.ask(ask.right, V, each)
        if forward.wide and _whole(U):
            backward.ask(ask.left, U, rest - each)
            break
        V = backward.ask(ask.left, U, each)
        if n_left and forward.noise <= QUIET:
            V = forward.widened(V, n_left, backward)
    if forward.slow or backward.slow or _whole(V) or _whole(U):
        variance = min(forward.variance(), backward.variance())
        sent = forward.transcript.sent, backward.transcript.sent
        U, V = joint_leading(*sent, variance, wanted)
    else:
        U, V = forward.result(U, wanted), backward.result(V, wanted)
    return U, V


def _whole(X: FloatArray) -> bool:
    """Whether a query asks for all of the matrix."""
    return bool(len(X) == X.shape[1])


def _across(basis: FloatArray) -> Project:
    """Return the projection onto what is orthogonal to a public basis."""
    return lambda Y: np.asarray(Y - basis @ (basis.T @ Y))


def ritz_values(
    ask: AsksRitz, X: FloatArray, k: int, share: float
) -> tuple[FloatArray, FloatArray]:
    """Return the k signed Ritz values largest in magnitude, and their vectors in the span of X."""
    M = ask.ritz(X, share=share).value
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    order = np.argsort(-np.abs(values))[:k]
    return values[order], X @ vectors[:, order]


# Low-rank fits of a matrix that is seen through noisy products, whatever the law of the noise.
#
# Notation as above. A `law` is public: "gaussian", "laplace" (pure differential
# privacy, one column) or "exact" (no noise). `start` has more columns than the k that are wanted:
# late ones, see there.


_STEPS = {"gaussian": posterior_step, "laplace": laplace_step}
_CORE_SHARE = {"gaussian": 0.02, "laplace": 0.1, "exact": 0.02}
N_PASSES = (6, 2)  # with a delta, without
_PASSES_EACH = 4  # of several pure components: two do not find one behind a stronger one
N_PRODUCTS = (16, 8)  # with a delta, without
_LATE, _FEW = 200, 10  # columns that may join those that are wanted, and how many always may
_CELLS = 250_000  # in them: each answer has as much noise
_EXACT_SHARE = 1e-5  # of a product without noise, of which there may be thousands


def late_columns(
    law: str, k: int, n_oversamples: int | str, n: int, most: int, *, symmetric: bool
) -> tuple[int, int]:
    """Return how many columns are sent at once, and how many wait until they cost little.

    Matrices have at most n rows or columns, queries at most `most` columns. A number of more
    columns is there from the first step; "auto" has them wait: few on symmetric matrices, whose
    noise goes both ways.
    """
    if law == "laplace":
        return k, 0
    if not isinstance(n_oversamples, str):
        return min(k + n_oversamples, max(k, most)), 0
    late = min(k, _FEW) if symmetric else min(_LATE, max(_CELLS // n, _FEW))
    return k, max(min(late, most - k), 0)


def alternate(
    ask: Any,
    start: FloatArray,
    k: int,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    first: int | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alternate A V and A'U, then take the SVD of a noisy core: (U, k singular values, V).

    `first` as in `half_steps`.
    """
    core = _CORE_SHARE[law]
    if law == "exact":
        U, V = _exact_pairs(ask, start[:, :k], _EXACT_SHARE * share)
    else:
        passes = N_PASSES[law == "laplace"] if isinstance(n_iter, str) else n_iter
        options: Any = {"wanted": k, "first": first, "step": _STEPS[law]}
        U, V = half_steps(ask, start, passes, (1 - core) * share, **options)
    return _core_svd(ask, U, V, k, core * share)


def _exact_pairs(ask: Any, start: FloatArray, each: float) -> tuple[FloatArray, FloatArray]:
    def multiply(V: FloatArray) -> FloatArray:
        product: FloatArray = ask.left(ask.right(V, share=each).value, share=each).value
        return product

    V = leading_eigenvectors(multiply, start, start.shape[1])
    return orthonormal(ask.right(V, share=each).value), V


def passes_of_deflation(k: int) -> int:
    """Return how many passes each of k components has by default."""
    return _PASSES_EACH if k > 1 else N_PASSES[True]


def deflate(
    ask: Any, n_rows: int, starts: FloatArray, k: int, share: float, *, law: str, n_iter: int | str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One pair of vectors after the other, each across the ones before: (U, values, V).

    For Laplace noise, which grows with the columns of one answer; Gaussian noise does not.
    """
    if k == 1 or law == "exact":  # the same pairs
        return alternate(ask, starts, k, share, law=law, n_iter=n_iter, first=k)
    U, V = np.zeros((n_rows, 0)), np.zeros((len(starts), 0))
    passes = passes_of_deflation(k) if isinstance(n_iter, str) else n_iter
    core = _CORE_SHARE[law]
    for j in range(k):
        options: Any = {"across": (U, V), "step": _STEPS[law]}
        u, v = half_steps(ask, starts[:, [j]], passes, (1 - core) * share / k, **options)
        U, V = np.hstack([U, u]), np.hstack([V, v])
    return _core_svd(ask, U, V, k, core * share)


def _core_svd(
    ask: Any, U: FloatArray, V: FloatArray, k: int, share: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    left, values, right = np.linalg.svd(ask.core(U, V, share=share).value)
    return U @ left[:, :k], values[:k], V @ right[:k].T


def iterate_symmetric(
    ask: Any,
    start: FloatArray,
    k: int,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    first: int | None = None,
    project: Project | None = None,
    spread: bool = True,
) -> tuple[FloatArray, FloatArray]:
    """Power iteration on a symmetric matrix, then signed Ritz values: (k values, vectors).

    `spread` as in `symmetric_power`.
    """
    core = _CORE_SHARE[law]
    project = project or np.asarray
    if law == "exact":
        each = _EXACT_SHARE * share

        def multiply(Q: FloatArray) -> FloatArray:
            return project(ask.right(project(Q), share=each).value)

        X = leading_eigenvectors(multiply, project(start[:, :k]), k)
    else:
        steps = N_PRODUCTS[law == "laplace"] if isinstance(n_iter, str) else n_iter
        options: Any = {"wanted": k, "first": first, "project": project, "step": _STEPS[law]}
        options["spread"] = spread
        X = symmetric_power(ask, start, steps, (1 - core) * share, **options)
    return ritz_values(ask, X, k, core * share)

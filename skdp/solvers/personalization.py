"""What users share: the global model, and the public preprocessing of a user's rows.

Notation: user j has m rows X_j (m x d) and targets Y_j (m x p), d features, p outputs, k
components. The whitener W (d x d) and the subspace U (d x k, orthonormal, in whitened features) are
public; user j's coefficients are about W U V_j. Each step asks for a message: a public function of
one user's rows, which `ask` bounds before it releases the noisy sum. A message is made of public
numbers alone, so that it can be sent to devices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp._limits import CLEAR, DEVIATION, FloatArray
from skdp.answer import Answer
from skdp.data.factorisations import of_public, times_powers
from skdp.solvers import local_fits
from skdp.solvers.columns import CUT, FARTHEST, FoundColumns
from skdp.solvers.linalg import signal_share, symmetric_noise_edge, top_eigenpairs
from skdp.solvers.linear_regression import NormalEquations, normal_equations, solve_normal_equations
from skdp.solvers.postprocess import denoised
from skdp.solvers.scaling import Scaling, digest

# The global model: a linear model of all users, from which their own models start.


class GlobalModel(NamedTuple):
    """A released linear model of all users together.

    Attributes
    ----------
    coef : array of shape (d, p)
        Coefficients.
    intercept : array of shape (p,)
        Intercepts.
    own_means : bool
        Whether the intercept of a user is the mean of its own targets, as none was found for all.
    found : bool
        Whether its coefficients stand above their noise, which hides at most four fifths of them.
    """

    coef: FloatArray
    intercept: FloatArray
    own_means: bool = False
    found: bool = True

    @property
    def public(self) -> tuple[FloatArray, FloatArray | None]:
        """Its arrays; None for an intercept of each user's own."""
        return self.coef, None if self.own_means else self.intercept

    def times(self, coef: float, intercept: float) -> GlobalModel:
        """Return the model with multiples of its coefficients and intercepts."""
        return self._replace(coef=coef * self.coef, intercept=intercept * self.intercept)

    def on(self, columns: NDArray[np.bool_]) -> GlobalModel:
        """Return the model of the rows whose other columns are at their centres."""
        return self._replace(coef=self.coef * columns[:, None])

    def predictions(self, batch: local_fits.UserBatch) -> FloatArray:
        """Predictions of a batch, in the unit of each user's targets."""
        shift = batch.x_exponent - batch.y_exponent
        values = times_powers(np.matmul(batch.X, self.coef), shift)
        if self.own_means:
            return values + local_fits.shrunk_means(batch.Y)
        return values + np.ldexp(self.intercept[None, None], -batch.y_exponent[:, None, None])


PENALTIES: FloatArray = 10.0 ** np.linspace(-4, 1.5, 8)


Local = Callable[[Any], FloatArray]


class AsksUsers(Protocol):
    """What the solver asks for; see `skdp.queries.users.UserQuery`."""

    def grams(self, name: str, local: Local, width: int, *, share: float) -> Answer:
        """Return the noisy sum of unit-norm matrices F'F."""

    def sums(
        self, name: str, local: Local, parts: tuple[tuple[Any, ...], ...], *, share: float
    ) -> Answer:
        """Return the noisy sum of contributions, each part clipped to its level."""


# -- what users send -------------------------------------------------------------------------------


class Message(ABC):
    """A public function of a batch of users, one row for each; and how its answers are asked."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, batch: Any) -> FloatArray:
        """Return what the users send."""


class GramMessage(Message):
    """Factors F (users, p, width) of a batch; the unit matrix of F'F is what a user adds."""

    d: int

    @property
    def width(self) -> int:
        """Order of the matrix: the number of features, where it is no other."""
        return self.d

    def asked(self, users: Any, **share: float) -> Any:
        """Ask users (or an `ask` about them) for the sum."""
        return users.grams(self.name, self, self.width, **share)


class SumMessage(Message):
    """An array of a batch, made of parts that are clipped to their levels."""

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """Shape, level and sign of each part; see `skdp.queries.users.Part`."""

    def asked(self, users: Any, **share: float) -> Any:
        """Ask users (or an `ask` about them) for the sum."""
        return users.sums(self.name, self, self.parts, **share)


# -- what a user sees of its own rows --------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """How users preprocess their rows: public whitener, own scale, the loss.

    Attributes
    ----------
    whitener : array of shape (d, d) or None
        Public.
    intercept : bool
        Whether users have their own intercept.
    loss_name : str or RowLoss
        A key of `LOSSES`, or a loss of residuals.
    base : GlobalModel or None
        What users subtract from their targets first: they then learn how they differ from it.
    """

    whitener: FloatArray | None
    intercept: bool
    loss_name: str | local_fits.RowLoss
    base: GlobalModel | None = None

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays: whitener, the model's coefficients and intercepts."""
        return (self.whitener, *((None, None) if self.base is None else self.base.public))

    @property
    def loss(self) -> local_fits.ConvexLoss:
        """The loss."""
        return local_fits.convex_loss(self.loss_name)

    @property
    def variance(self) -> float:
        """Prior variance of an intercept: free, or none."""
        return math.inf if self.intercept else 0.0

    def whitened(self, X: FloatArray) -> FloatArray:
        """Apply the whitener to the last axis."""
        return X if self.whitener is None else np.matmul(X, self.whitener)

    def whitened_moments(self, A: FloatArray) -> FloatArray:
        """Return moments (n, d, p) of whitened rows from those of rows as they come."""
        return A if self.whitener is None else np.asarray(np.matmul(self.whitener.T, A))

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Return coefficients (..., d, p) of rows as they come from those of whitened ones."""
        return theta if self.whitener is None else np.asarray(np.matmul(self.whitener, theta))

    @cached_property
    def of_rows(self) -> tuple[Hashable, ...]:
        """The key of this preprocessing."""
        return self.intercept, digest(self.whitener)

    def __call__(self, batch: local_fits.UserBatch) -> Viewed:
        """Whiten a batch and bring each user to mean square 1."""
        return Viewed(self, batch, self.own_residuals(batch))

    def own_residuals(self, batch: local_fits.UserBatch) -> FloatArray:
        """Return what the user fits next to the global model."""
        if self.base is None:
            return batch.Y
        base = self.base
        key = ("targets", *map(digest, base.public))
        return batch.keep(key, lambda: (batch.Y - base.predictions(batch),))[0]

    def informs(self, batch: local_fits.UserBatch) -> NDArray[np.bool_]:
        """Whether a user's rows determine a direction: exact, whatever the order of the rows.

        With an intercept, equal rows or equal targets determine no slope, and a fit in floats would
        return the direction of its rounding errors.
        """
        if not self.intercept or batch.Y.shape[1] < 2:
            return np.ones(len(batch.Y), bool)

        varies = [(A[:, :1] != A).any(axis=(1, 2)) for A in (batch.X, batch.Y)]
        return np.asarray(varies[0] & varies[1])

    def linear_targets(self, Y: FloatArray) -> FloatArray:
        """Targets for a least-squares fit: labels become centred indicators."""
        if self.loss_name == "logistic":
            return Y - 0.5
        return Y - 1.0 / Y.shape[2] if self.loss_name == "softmax" else Y

    def ridge(self, batch: local_fits.UserBatch) -> FloatArray:
        """Coefficients (n, d, p) by least squares, with each user's best leave-one-out penalty."""
        viewed = self(batch)
        Y = self.linear_targets(viewed.Y)
        coef = viewed.moments(viewed.path.best_dual(Y, PENALTIES, self.variance))
        return np.where(self.informs(batch)[:, None, None], coef, 0.0)


class Viewed:
    """Rows of a batch in public coordinates, and targets in the user's own scale.

    Rows are whitened only where all of their coordinates are needed.

    Parameters
    ----------
    view : View
        How users look at their rows.
    batch : UserBatch
        The users.
    Y : array of shape (n, m, p)
        What users fit.
    """

    def __init__(self, view: View, batch: local_fits.UserBatch, Y: FloatArray) -> None:
        self._view, self._batch, self.Y = view, batch, Y
        # The root mean square of whitened rows, own means taken off, which they are divided by.
        about = local_fits.centred if view.intercept else np.asarray
        scale = lambda: (local_fits.own_scale(about(self._whitened)),)  # noqa: E731
        (self.scale,) = batch.keep(("scale", *view.of_rows), scale)

    @cached_property
    def _whitened(self) -> FloatArray:
        return self._view.whitened(self._batch.X)

    @cached_property
    def X(self) -> FloatArray:
        """The rows, (n, m, d)."""
        return np.asarray(self._whitened / self.scale[:, None, None])

    def times(self, B: FloatArray) -> FloatArray:
        """Return the rows times a public matrix of few columns."""
        rows = np.matmul(self._batch.X, self._view.coefficients(B))
        return np.asarray(rows / self.scale[:, None, None])

    def moments(self, R: FloatArray) -> FloatArray:
        """Return X'R of each user, for few columns."""
        found = self._view.whitened_moments(local_fits.moments(self._batch.X, R))
        return np.asarray(found / self.scale[:, None, None])

    @property
    def own_means(self) -> FloatArray:
        """The shrunk mean of each user's targets, (n, p)."""
        means = local_fits.shrunk_means(self._batch.Y)[:, 0]
        return np.ldexp(means, self._batch.y_exponent[:, None])

    def undone(self, V: FloatArray, intercept: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients (n, ..., p) and intercepts (n, p) without the user's own scale."""
        batch = self._batch
        V = V / self.scale[:, None, None]
        V = np.ldexp(V, (batch.y_exponent - batch.x_exponent)[:, None, None])
        return V, np.ldexp(intercept, batch.y_exponent[:, None])

    @cached_property
    def path(self) -> local_fits.RidgePath:
        """Ridge fits to all coordinates; their decomposition is made once for a view.

        It is rounded to 24 bits, cached or not, so that twice as many users fit into the cache. For
        penalties from 1e-4 of the mean square of rows on, this changes little.
        """

        def made() -> tuple[NDArray[Any], ...]:
            path = local_fits.RidgePath.of(self._whitened)  # scaled afterwards, which is quicker
            relative = path.s / path.size[:, None]  # far from the largest float32
            size = path.size / np.square(self.scale)
            return size, path.basis.P.astype(np.float32), relative.astype(np.float32)

        size, P, s = self._batch.keep(("path", *self._view.of_rows), made)
        basis = local_fits.Basis(P.astype(np.float64))
        return local_fits.RidgePath(size, basis, s.astype(np.float64) * size[:, None])


# -- the shared structure --------------------------------------------------------------------------


@dataclass(frozen=True)
class Shared:
    """What has been learned so far; everything in it is public.

    Attributes
    ----------
    U : array of shape (d, k)
        Orthonormal, in whitened features.
    error : float
        Estimated squared sine between U and the users' subspace, per component.
    count : float
        Released number of users.
    eigenvalues : array or None
        Of the released votes, in descending order.
    """

    U: FloatArray
    error: float
    count: float
    eigenvalues: FloatArray | None = None


# The global model, which each user's own model starts from.
#
# A user contributes the mean of its moments, scaled to norm 1: neither its rows nor its targets
# need a bound, and a user with one row counts like one with a hundred. How users differ from this
# model is learnt by their own models.


_SAME_SCALE = 2.0  # log2 bins that the scale of a column may be away from the common one
_WEIGHT = 0.5  # of the intercept and of a target of one scale, next to an ordinary row


class TargetUnit(NamedTuple):
    """Location and scale of the users' targets.

    Attributes
    ----------
    center : array of shape (p,)
        Released median of one target of each user, or 0.
    size : float
        About their median distance from it.
    found : bool
        Whether the released ranks are significant.
    """

    center: FloatArray
    size: float
    found: bool


def target_unit(targets: FoundColumns, n_noise: float) -> TargetUnit:
    """Return location and scale of the targets, from one of each user.

    Heads that start from a wrong location are much worse than no shared model, so a result that may
    be from fewer users than `needed` is not used.
    """
    found = bool(targets.found.all()) and targets.n - n_noise >= targets.needed
    return TargetUnit(targets.center, float(targets.scale.max()), found)


def scaling_of(columns: FoundColumns) -> Scaling:
    """Return centre and scale of each column: 0 and the common scale, unless clearly different.

    A scale or a centre that may be noise is not used, because nothing later corrects it: neither
    the whitener of few users, nor rules that shrink intercepts. If there are enough users to find
    scales, a column about 0 whose scale was not found is nearly always 0. Its few other entries
    need a limit, or they would spoil heads, so such columns share one deviation.
    """
    # Where a centre may as well be 0, the distance of many zeros from it is no scale.
    distance = np.abs(columns.center)
    shown = columns.found & (
        columns.center_found | (distance == 0) | (distance > 2 * columns.scale)
    )
    shown &= 2 * columns.n >= columns.needed  # fewer users show no scale
    rare = ~columns.found & (distance == 0) & (columns.needed <= columns.n < math.inf)
    rare_scale = np.exp(np.median(np.log(columns.deviation[rare]))) if rare.any() else 1.0
    common = np.median(columns.scale[shown]) if shown.any() else rare_scale
    # If zeros and ones are about equally frequent, the centre may lie near one of them. The small
    # distance to it is no scale, and more rows are needed to show that many entries lie far beyond.
    dummy = (distance > 0) & (distance <= 2 * columns.scale) & (columns.n < 8 * columns.needed)
    spread = np.where(dummy & (4 * columns.scale < min(common, 1)), 1.0, columns.scale)
    differs = shown & (np.abs(np.log2(spread / common)) > _SAME_SCALE)
    scale = np.where(rare, rare_scale, np.where(differs, spread, common))
    center = np.where(distance > scale, columns.center, 0.0)
    return Scaling(center, scale, np.where(shown | rare, FARTHEST, math.inf))


@dataclass(frozen=True)
class Pooled(GramMessage):
    """Rows, targets and a bias column of a user, in public units."""

    weight: FloatArray
    target_center: FloatArray
    target_size: float
    intercept: bool

    name = "pooled_regression_moments"

    @property
    def public(self) -> tuple[Any, ...]:
        """Its numbers."""
        return self.weight, self.target_center, self.target_size

    @property
    def width(self) -> int:
        """Number of features, targets and bias columns."""
        return len(self.weight) + len(self.target_center) + (1 if self.intercept else 0)

    def __call__(self, batch: local_fits.UserBatch) -> FloatArray:
        """Return the records."""
        n, m, d = batch.X.shape
        records = np.full((n, m, self.width), _WEIGHT)
        X, Y = records[:, :, :d], records[:, :, d : d + batch.Y.shape[2]]
        times_powers(batch.X, batch.x_exponent, out=X)
        X *= self.weight
        Y[:] = times_powers(batch.Y, batch.y_exponent)
        Y -= self.target_center
        Y[:] = _WEIGHT * np.clip(Y / self.target_size, -CUT, CUT)
        return records


def pooled_model(
    ask: AsksUsers, found: NDArray[np.bool_], unit: TargetUnit, share: float, *, intercept: bool
) -> tuple[GlobalModel, FloatArray]:
    """Release the users' mean moments of rows, targets and a bias column.

    Return the linear model, and the whitener of rows. A column whose scale was not found is left
    out of both. A usual row has norm 1.
    """
    d, p = len(found), len(unit.center)
    weight = found / math.sqrt(d)
    equations, shown = _pooled_equations(ask, weight, unit, share, CUT * math.sqrt(p), intercept)
    whitener = _whitener_on(found, equations)
    if not (shown and unit.found):  # the number of users or the location of y is noise
        level = unit.center
        if shown and intercept:
            noise = equations.cross_noise / (equations.weight * equations.bias)
            level = level + denoised(equations.target_mean, noise)
        nothing = GlobalModel(np.zeros((d, p)), level, own_means=not unit.found, found=False)
        return nothing, whitener
    solution = solve_normal_equations(equations, 0.0)
    # A model of which noise hides more than this predicts new users no better than a constant does.
    kept = solution.above_noise & (solution.lost <= 0.8)
    coef, level = solution.coefficients * weight[:, None], solution.intercepts + unit.center
    return GlobalModel(coef, level, found=bool(kept.all())), whitener


def pooled_classes(
    ask: AsksUsers, found: NDArray[np.bool_], p: int, share: float, *, intercept: bool
) -> tuple[GlobalModel, FloatArray]:
    """Release the same moments of indicators of classes; return a model of logits, and a whitener.

    All columns count, so their rows should be scaled by estimates of all columns. Probabilities
    about 1/q of q classes change by (q - 1)/q^2 with a logit. Without a model the logits are those
    of the class frequencies, which noise shrinks: few users still show which class is likeliest.
    """
    d, q = len(found), max(p, 2)
    weight = np.full(d, _WEIGHT / math.sqrt(d))  # a row counts as much as its label
    unit = TargetUnit(np.full(p, 1 / q), math.sqrt(q - 1) / q, True)
    equations, shown = _pooled_equations(ask, weight, unit, share, math.sqrt(q), intercept)
    whitener = _whitener_on(found, equations)
    solution = solve_normal_equations(equations, 0.0)
    if shown and solution.likely.any():  # the scores of one class may be as they are by chance
        slope = q * q / (q - 1)
        coef = solution.coefficients * weight[:, None]
        return GlobalModel(slope * coef, slope * solution.intercepts), whitener
    mean, logits = equations.target_mean, np.zeros(p)
    if intercept:
        noise = p * float(equations.cross_noise[0] / (equations.weight * equations.bias)) ** 2
        total = float(mean @ mean)
        frequencies = 1 / q + mean * (total / (total + noise + 1e-300))
        least = 1 / (equations.weight + 2)
        frequencies = np.clip(frequencies, least, 1 - least)
        logits = np.log(frequencies)
        logits -= np.log(1 - frequencies) if p == 1 else logits.mean()
    return GlobalModel(np.zeros((d, p)), logits, found=False), whitener


def _pooled_equations(
    ask: AsksUsers, weight: FloatArray, unit: TargetUnit, share: float, norm: float, intercept: bool
) -> tuple[NormalEquations, bool]:
    """Release the moments of `Pooled`; also return whether the number of users is not noise.

    `norm` bounds the targets of a row in their units.
    """
    p = len(unit.center)
    released = Pooled(weight, unit.center, unit.size, intercept).asked(ask, share=share)
    equations = normal_equations(
        released.value, released.noise_scale, np.full(p, unit.size / _WEIGHT),
        bias=_WEIGHT * intercept, clip_norm=CUT, target_norm=_WEIGHT * norm,
    )  # fmt: skip
    square = np.full(p, (DEVIATION * unit.size) ** 2)
    if intercept:  # the variance of what was released
        square = np.diag(released.value)[len(weight) : -1] / equations.weight
        square = square * (unit.size / _WEIGHT) ** 2 - equations.target_mean**2
    shown = not intercept or released.value[-1, -1] >= CLEAR * released.noise_scale
    return equations._replace(square=square), bool(shown)


def _whitener_on(found: NDArray[np.bool_], equations: NormalEquations) -> FloatArray:
    """Return the whitener of the columns `found`; it leaves the others as they are."""
    whitener, columns = np.eye(len(found)), np.ix_(found, found)
    if found.any():
        moment = Answer(equations.scatter[columns], math.sqrt(2) * equations.noise)
        whitener[columns] = whitener_of(moment)
    return whitener


# The whitener, and the subspace that users share, from one direction of each user.


def whitener_of(released: Answer) -> FloatArray:
    """Return M^(-1/2) of a released second moment M, mean 1.

    What differs from a multiple of the identity is shrunk by the share of it that noise explains
    (three standard deviations of it), and eigenvalues stay above those of the noise that is left,
    whose root mean square is half of their edge: with few users nothing is whitened.
    """
    M, noise = released.value, released.noise_scale
    d = len(M)
    mean = float(np.trace(M) / d)
    change = M - mean * np.eye(d)
    terms = d * (d + 1) / 2
    total = float((change * change).sum())
    noise_square = noise**2 * terms * (1 + 3 * math.sqrt(2 / terms))
    shrink = signal_share(total, noise_square)
    if shrink == 0.0 or mean <= 0.0:
        return np.eye(d)
    least = max(shrink * symmetric_noise_edge(noise, d) / 2, 1e-3 * mean)
    values, vectors = of_public(np.linalg.eigh, mean * np.eye(d) + shrink * (change + change.T) / 2)
    W = (vectors * np.maximum(values, least) ** -0.5) @ vectors.T
    return np.asarray(W / (np.trace(W) / d))


def count_directions(values: FloatArray, noise_scale: float, n: float) -> int:
    """Count eigenvalues of votes above the edge of their noise and of n random directions."""
    d = len(values)
    edge = symmetric_noise_edge(noise_scale, d) + 2 * math.sqrt(n / d)
    return max(1, int(np.count_nonzero(values > np.median(values) + 1.1 * edge)))


def _error_of_directions(values: FloatArray, k: int, noise_scale: float, n: float) -> float:
    """Squared sine of the top-k eigenvectors, per component.

    Symmetric noise with spectral edge R moves a spike t to t + R^2/(4t) and turns its eigenvector
    by R^2/(4 t^2); a spike within the edge gives no information. R includes the noise and the
    variance of the unit directions.
    """
    d = len(values)
    if d == k:
        return 0.0
    top = values[:k]
    bulk = max(0.0, (n - float(top.sum())) / (d - k))
    spread = np.maximum(top, 0.0) * bulk / n
    edge = symmetric_noise_edge(1.0, d) * np.sqrt(noise_scale**2 + 2 * spread)
    gaps = np.maximum(top - bulk, 0.0)
    excess = np.maximum(gaps**2 - edge**2, 0.0)
    spikes = np.where(excess > 0, gaps + np.sqrt(excess), np.inf) / 2
    tilt = np.where(excess > 0, edge**2 / (4 * spikes**2), 1.0)
    return float(np.mean(np.minimum(tilt, (d - k) / d)))


@dataclass(frozen=True)
class UserDirections(GramMessage):
    """A user's own direction, from its rows alone."""

    view: View
    d: int

    name = "user_direction_gram"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return self.view.public

    def __call__(self, batch: local_fits.UserBatch) -> FloatArray:
        """Return the direction, of any length."""
        return local_fits.transposed(self.view.ridge(batch))


def direction_start(ask: AsksUsers, view: View, d: int, k: int | str, share: float) -> Shared:
    """Release the sum of u u' over the users' directions u; its eigenvectors give the subspace."""
    released: Answer = UserDirections(view, d).asked(ask, share=share)
    values, vectors = top_eigenpairs(released.value)
    noise = released.noise_scale
    count = max(1.0, float(values.sum()), noise * math.sqrt(d))
    # Heads would overfit in directions of noise. If k is given, half as significant ones count.
    clear = count_directions(values * (1 if isinstance(k, str) else 2), noise, count)
    k = clear if isinstance(k, str) else min(k, clear)
    error = _error_of_directions(values, k, noise, count)
    return Shared(vectors[:, :k], error, count, values)

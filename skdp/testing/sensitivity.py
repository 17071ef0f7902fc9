"""Attacks on the claimed sensitivity of a query, deterministic and without noise.

The gate adds noise for the change that `Bound.l2_steps` (or `l1_steps`, or `linf`) claims, in
integer steps. Here that claim is attacked, in the same integers, with hostile neighbours and hill
climbing. A ratio above 1 is a privacy bug; a ratio far below 1 is wasted noise.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
import scipy.sparse as sp

from skdp._limits import WIDER
from skdp.privacy.gate.bounds import Bound, Bounded, gaussian_step, laplace_step
from skdp.privacy.gate.session import CHOICE_BITS
from skdp.testing._transcripts import change
from skdp.units import ADJACENCIES

# One matrix in several formats, the awkward ones among them, and the smallest blocks of rows.


def _csr_with_duplicates(X):
    """CSR in which every entry is stored as two halves, in reverse order, flagged canonical."""
    whole = sp.coo_array(X)
    row, column = (np.concatenate([part, part]) for part in whole.coords)
    order = np.argsort(row, kind="stable")[::-1]
    order = order[np.argsort(row[order], kind="stable")]
    halves = np.concatenate([whole.data, whole.data])
    counts = np.bincount(row, minlength=X.shape[0])
    # Half of a subnormal would be rounded: those entries are stored whole, next to a zero.
    first = np.arange(len(halves)) < len(whole.data)
    small = np.abs(halves) < 1e-290
    halves = np.where(small, np.where(first, halves, 0.0), halves / 2)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sp.csr_array((halves[order], column[order], indptr), shape=X.shape)


def _csr_with_zeros(X):
    """CSR in which every entry is stored, zeros too."""
    n, d = X.shape
    indptr = np.arange(0, n * d + 1, d)
    return sp.csr_array((X.ravel().copy(), np.tile(np.arange(d), n), indptr), shape=X.shape)


FORMATS: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": np.asarray,
    "csr": sp.csr_array,
    "csr with duplicates": _csr_with_duplicates,
    "csr with explicit zeros": _csr_with_zeros,
}


def _formatted(data, to):
    return (to(data[0]), *data[1:]) if isinstance(data, tuple) else to(data)


_DECADES = np.concatenate([10.0 ** np.arange(-7, 8), [1e-300, 1e200, 1.7e308]])

_SIZES = np.array([1.0, 1e-154, -1.0, -1e-154, 1e150, 1e-4, 5e-324, 1e162, 1e-162, 0.0])


def mixed_sizes(n, d):
    """Return rows with entries of extreme sizes.

    Their squares and products overflow or underflow, and LAPACK fails for some of their Gram
    matrices.
    """
    rows = _SIZES[np.add.outer(np.arange(n), np.arange(d)) % len(_SIZES)]
    rows[:3] = np.eye(1, d)  # one direction, and changes whose squares vanish next to it
    rows[1:3, 1:2] = np.array([[1e-154], [-1e-154]])[: len(rows[1:3])]
    return rows


def unit_vector(x):
    """Return x over its norm (zero stays zero)."""
    size = float(np.linalg.norm(x))
    return x / size if size > 0 else x


def _times(size, x):
    with np.errstate(over="ignore"):
        return np.clip(size * x, -1.7e308, 1.7e308)


class Neighbours(ABC):
    """Base of the neighbour generators.

    Parameters
    ----------
    base : ndarray
        Data that both neighbours share.
    adjacency : {"add_remove", "replace"}
        What they differ in.
    scale : float, default=1.0
        The public bound on a contribution: the interesting size.
    directions : iterable of ndarray, default=()
        Directions that matter: singular vectors of a public matrix, for instance.
    bounds : tuple of float, default=(-1.0, 1.0)
        Bounds of an entry (entry and edge units).
    """

    def __init__(
        self,
        base: np.ndarray,
        adjacency: str,
        *,
        scale: float = 1.0,
        directions: Iterable[np.ndarray] = (),
        bounds: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        self.base = np.asarray(base, np.float64)
        self.replace = adjacency == "replace"
        self.scale = scale
        self.directions = [np.asarray(v, np.float64) for v in directions]
        self.bounds = bounds

    @abstractmethod
    def starts(self, rng) -> Iterator[tuple[str, tuple]]:
        """Yield (name, theta) of hostile neighbours."""

    @abstractmethod
    def pair(self, theta) -> tuple:
        """Return the two data sets."""

    @abstractmethod
    def perturb(self, theta, rng, size: float):
        """Return a theta near this one."""


NEIGHBOURS: dict[str, Callable[..., Neighbours]] = {}


def register_neighbours(unit: str):
    """Decorate a class of neighbours as those of a privacy unit."""

    def register(cls):
        NEIGHBOURS[unit] = cls
        return cls

    return register


@register_neighbours("row")
class RowNeighbours(Neighbours):
    """A row comes or goes (appended last), or the last row is another one."""

    def _lines(self, rng):
        d = self.base.shape[1]
        spike, flat = np.eye(d)[0], np.ones(d) / math.sqrt(d)
        yield "spike", spike
        yield "flat", flat
        yield "random", unit_vector(rng.standard_normal(d))
        if len(self.base):
            yield "like the first row", unit_vector(self.base[0])
        for i, v in enumerate(self.directions):
            if v.shape == (d,):
                yield f"public direction {i}", unit_vector(v)

    def _rows(self, rng):
        c = self.scale
        for name, v in self._lines(rng):
            for s in _DECADES:
                yield f"{name} x {s:g}", _times(s * c, v)
            for s in (1.0, 1 - 1e-15, 1 + 1e-15, 1 - 1e-6, 1 + 1e-6, 0.5):
                yield f"{name} at {s!r} of the bound", s * c * v
        d = self.base.shape[1]
        for name, value in (("zero", 0.0), ("NaN", np.nan), ("infinite", np.inf)):
            yield f"{name} row", np.full(d, value)
        mixed = np.ones(d)
        mixed[-1] = np.nan
        yield "row with one NaN", mixed
        for i, row in enumerate(mixed_sizes(6, d)[1:]):
            yield f"mixed sizes {i}", row

    def _partners(self, x, rng):
        """Rows to replace x by: antipodal, orthogonal, at obtuse angles, nothing, tiny."""
        finite = np.where(np.isfinite(x), x, 0.0)
        size = float(np.linalg.norm(np.clip(finite, -1e150, 1e150))) or self.scale
        u = unit_vector(np.clip(finite, -1e150, 1e150))
        w = rng.standard_normal(len(x))
        w = unit_vector(w - (w @ u) * u)
        yield "antipodal", -finite
        yield "orthogonal", size * w
        yield "obtuse", size * (-0.25 * u + math.sqrt(1 - 0.0625) * w)
        yield "absent", np.zeros_like(x)

    def starts(self, rng):
        """Yield rows over 14 decades of size, at the bound, along hostile directions."""
        for name, x in self._rows(rng):
            if not self.replace:
                yield name, (x,)
                continue
            for partner, y in self._partners(x, rng):
                yield f"{name} against {partner}", (x, y)

    def pair(self, theta):
        """Return the base without and with the row, or with one and the other."""
        sets = [np.vstack([self.base, row[None, :]]) for row in theta]
        return (self.base, sets[0]) if len(sets) == 1 else (sets[0], sets[1])

    def perturb(self, theta, rng, size):
        """Move the rows relative to their size, now and then rescale them."""
        return tuple(self._moved(row, rng, size) for row in theta)

    def _moved(self, row, rng, size):
        row = np.where(np.isfinite(row), row, 0.0)
        row = np.clip(row, -1e140, 1e140)
        length = float(np.linalg.norm(row)) or self.scale
        noise = unit_vector(rng.standard_normal(row.shape))
        return (row + size * length * noise) * math.exp(size * float(rng.standard_normal()))


@dataclass
class SensitivityReport:
    """What `check_sensitivity` found.

    Attributes
    ----------
    name : str
        Name of the release.
    ratios : dict
        Largest realised / claimed change, by norm: "l2", "l1", "linf" where the bound has them.
    worst : str
        The neighbour that reached `ratio`.
    pair : tuple
        That pair of data sets.
    step : float
        The step at which it was reached.
    n_pairs : int
        Pairs of data sets tried.
    """

    name: str
    ratios: dict[str, float] = field(default_factory=dict)
    worst: str = ""
    pair: tuple = field(default=(), repr=False)
    step: float = 0.0
    n_pairs: int = 0

    @property
    def ratio(self) -> float:
        """Largest realised / claimed change over all norms."""
        return max(self.ratios.values(), default=0.0)

    def __str__(self) -> str:
        parts = ", ".join(f"{norm} {ratio:.6f}" for norm, ratio in self.ratios.items())
        return f"{self.name}: {parts} ({self.n_pairs} pairs; worst: {self.worst})"


class _Attack:
    """Evaluates pairs against the claims of one release."""

    def __init__(self, make_query, release, public, budgets) -> None:
        self.make_query, self.release, self.public = make_query, release, public
        self.budgets = budgets
        self.report = SensitivityReport(str(release))
        self._cached: tuple[Any, ...] = (None, "", None, (), ())

    def bounded(self, data) -> Bounded:
        query = self.make_query(data)
        if callable(self.release):
            return self.release(query, *self.public)
        return getattr(query, self.release)(*self.public)

    def claims(self, bound: Bound) -> list[tuple[str, float, float]]:
        """Return (norm, step, claimed change in steps)."""
        if bound.linf is not None:
            return [("linf", bound.linf / 2.0**CHOICE_BITS, 2.0**CHOICE_BITS + 2)]
        out = []
        for mu in self.budgets:
            step = gaussian_step(bound, mu)
            out.append(("l2", step, bound.l2_steps(step)))
            if bound.l1 is not None:
                step = laplace_step(bound, mu)
                out.append(("l1", step, bound.l1_steps(step)))
        return out

    def answer(self, bounded: Bounded, step: float) -> np.ndarray:
        bound = bounded.bound
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                value = np.asarray(bounded.answer(step))
            except Exception as error:
                raise AssertionError(
                    f"{bound.name}: errors and warnings are seen by everybody; hostile data give "
                    f"{type(error).__name__}: {error}"
                ) from error
        if value.dtype != np.int64 or value.shape != bound.shape:
            raise AssertionError(
                f"{bound.name}: answer(step) must be int64 of shape {bound.shape}. "
                f"Got {value.dtype} of {value.shape}."
            )
        if bound.symmetric and not np.array_equal(value, value.T):
            raise AssertionError(f"{bound.name}: the bound says symmetric, the answer is not")
        return value

    def try_pair(self, first, second, form: str, name: str) -> float:
        """Return the largest ratio of one pair, and keep the record."""
        to, report = FORMATS[form], self.report
        data, seen, bound, claims, before = self._cached
        if data is not first or seen != form:
            a = self.bounded(_formatted(first, to))
            bound, claims = a.bound, self.claims(a.bound)
            before = [self.answer(a, step) for _, step, _ in claims]
            self._cached = first, form, bound, claims, before
        b = self.bounded(_formatted(second, to))
        if bound != b.bound:
            raise AssertionError(f"the bound depends on private data: {bound} and {b.bound}")
        best = (0.0, "", 0.0)
        for (norm, step, claimed), x in zip(claims, before, strict=True):
            shift = change(x, self.answer(b, step)).ravel()
            ratio = float(_size(shift, norm)) / claimed
            report.ratios[norm] = max(report.ratios.get(norm, 0.0), ratio)
            best = max(best, (ratio, norm, step))
        report.n_pairs += 1
        report.name = b.bound.name
        ratio, norm, step = best
        if ratio >= report.ratio and ratio > 0:
            report.worst, report.pair = f"{name} ({form}, {norm})", (first, second)
            report.step = step
        return ratio


def _size(shift, norm):
    if not shift.size:
        return 0.0
    if norm == "l2":
        largest = np.abs(shift).max() or 1.0
        return largest * np.sqrt(np.sum((shift / largest) ** 2))
    return np.abs(shift).sum() if norm == "l1" else shift.max() - shift.min()


def _directions(public) -> list[np.ndarray]:
    """Return singular vectors of the public matrices: where a product is most sensitive."""
    out: list[np.ndarray] = []
    for argument in public:
        if isinstance(argument, np.ndarray) and argument.ndim == 2 and argument.size:
            U, _, Wt = np.linalg.svd(argument, full_matrices=False)
            out += [*U.T[:3], U.T[-1], *Wt[:1]]
        elif isinstance(argument, np.ndarray) and argument.ndim == 1:
            out.append(argument)
    return out


def _bases(shape, rng, scale):
    n, d = shape
    yield scale * rng.standard_normal((n, d)) / np.sqrt(d)
    yield np.zeros((n, d))
    yield 1e3 * scale * np.outer(rng.standard_normal(n), rng.standard_normal(d))


def _climb(attack: _Attack, family: Neighbours, starts, n_steps: int, rng) -> None:
    for name, theta, best in starts:
        size = 0.5
        for _ in range(n_steps):
            with np.errstate(all="ignore"):
                moved = family.perturb(theta, rng, size)
            ratio = attack.try_pair(*family.pair(moved), "dense", f"climbed from {name}")
            if ratio > best:
                theta, best = moved, ratio
            else:
                size *= 0.85


def check_sensitivity(
    make_query: Callable[[Any], Any],
    release: str | Callable[..., Bounded],
    *public: Any,
    unit: str = "row",
    adjacency: str = "add_remove",
    shape: tuple[int, int] = (7, 4),
    bases: Iterable[np.ndarray] | None = None,
    scale: float = 1.0,
    entry_bounds: tuple[float, float] = (-1.0, 1.0),
    formats: Iterable[str] = tuple(FORMATS),
    budgets: Iterable[float] = (0.02, 0.3, 2.0),
    max_starts: int | None = None,
    n_climb: int = 40,
    seed: int = 0,
) -> SensitivityReport:
    """Attack the claimed sensitivity of one release; raise if a neighbour changes it by more.

    For every neighbour the integer answers are compared at several steps (budgets) with
    `Bound.l2_steps`, `Bound.l1_steps` and, for a choice, the range `Bound.linf`. Deterministic: a
    given seed tries the same pairs.

    Parameters
    ----------
    make_query : callable
        Data -> query object. The data are a matrix, or what the neighbours of the unit are.
    release : str or callable
        Name of a method that returns a `Bounded`, or a function of the query and the public values.
    *public : object
        Public arguments of the method. Singular vectors of matrices are attacked.
    unit : str, default="row"
        Privacy unit: "row", or one whose neighbours `register_neighbours` has.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in.
    shape : tuple of int, default=(7, 4)
        Shape of the default bases: random rows, zeros, and huge rows of rank one.
    bases : iterable of ndarray, default=None
        Data that neighbours share, instead of the default ones.
    scale : float, default=1.0
        The public bound on one contribution (clip norm): rows of that size are interesting.
    entry_bounds : tuple of float, default=(-1, 1)
        Bounds of one entry, for neighbours that differ in one.
    formats : iterable of str
        Among "dense", "csr", "csr with duplicates" and "csr with explicit zeros"; taken in turn.
    budgets : iterable of float
        Values of mu (and of epsilon for Laplace) that fix the steps; by default those of epsilons
        from about .07 to 11 at delta = 1e-6.
    max_starts : int, default=None
        At most this many of the adversarial neighbours of each base, evenly spread.
    n_climb : int, default=40
        Steps of hill climbing from each of the three worst neighbours of a base.
    seed : int, default=0
        Seed of bases and neighbours.

    Returns
    -------
    report : SensitivityReport

    Raises
    ------
    AssertionError
        If a ratio exceeds 1 + 1e-9, or if bound, dtype, shape or symmetry depend on data.

    Examples
    --------
    >>> from skdp.queries.rows import RowQuery
    >>> from skdp.testing import check_sensitivity
    >>> report = check_sensitivity(
    ...     lambda X: RowQuery(X, clip_norm=1.0, adjacency="add_remove"), "gram"
    ... )
    >>> 0.999 < report.ratio <= 1.0
    True
    """
    if unit not in NEIGHBOURS or adjacency not in ADJACENCIES:
        raise ValueError(
            f"no neighbours for unit={unit!r} and adjacency={adjacency!r}. Units are "
            f"{sorted(NEIGHBOURS)}, and others by register_neighbours; adjacencies {ADJACENCIES}."
        )
    rng = np.random.default_rng(seed)
    attack = _Attack(make_query, release, public, tuple(budgets))
    turns = cycle(tuple(formats))
    for base in _bases(shape, rng, scale) if bases is None else bases:
        family = NEIGHBOURS[unit](
            base, adjacency, scale=scale, directions=_directions(public), bounds=entry_bounds
        )
        tried = []
        form = next(turns)
        with np.errstate(all="ignore"):
            starts = list(family.starts(rng))
        thinned = np.linspace(0, len(starts) - 1, min(len(starts), max_starts or len(starts)))
        for index, (name, theta) in enumerate(starts[int(i)] for i in thinned):
            if index % 16 == 0:  # one format for a run of pairs: the base is evaluated once
                form = next(turns)
            ratio = attack.try_pair(*family.pair(theta), form, name)
            tried.append((name, theta, ratio))
        tried.sort(key=lambda item: -item[2])
        _climb(attack, family, tried[:3], n_climb, rng)
    report = attack.report
    if not report.ratios:
        raise ValueError("no pair was tried: 'bases' or 'budgets' are empty (a used generator is).")
    if not report.ratio <= WIDER:
        raise AssertionError(f"a neighbour changes the release by more than is claimed: {report}")
    return report


def check_charge_before_read(
    make_query: Callable[[Any], Any],
    release: str | Callable[..., Bounded],
    *public: Any,
    data: np.ndarray,
    mu: float = 0.3,
) -> None:
    """Check that a release computes nothing before the gate asks for it.

    The data are overwritten in place between the request and the reading: a value that was computed
    before the charge still shows the old data.

    Parameters
    ----------
    make_query : callable
        Matrix -> query object; it must keep a reference to a float64 array, as `RowQuery` does.
    release : str or callable
        As in `check_sensitivity`.
    *public : object
        Public arguments of the method.
    data : ndarray
        A matrix; it is not modified.
    mu : float, default=0.3
        Budget that fixes the step.
    """
    attack = _Attack(make_query, release, public, (mu,))
    early, late = np.array(data, np.float64), -0.5 * np.array(data[::-1], np.float64)
    late[: len(late) // 2] = 0.0
    expected = attack.bounded(late)
    step = attack.claims(expected.bound)[0][1]
    truth = attack.answer(expected, step)
    changed = not np.array_equal(attack.answer(attack.bounded(early.copy()), step), truth)
    promised = attack.bounded(early)
    early[...] = late
    if changed and not np.array_equal(attack.answer(promised, step), truth):
        raise AssertionError(
            f"{expected.bound.name}: the value was computed before it was paid for"
        )

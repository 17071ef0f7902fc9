"""What a factorizer will release: decided from parameters and public shapes alone."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from skdp.data.linear_maps import IntegerSketch, SketchMap
from skdp.exceptions import PrivacyError
from skdp.queries.sketches import SketchUnit

_DENSE_SIZE = 2e7  # entries of a matrix of noise that "auto" may make
_WIDE_SIZE = 4e6  # numbers of sketches, noisy ones and random ones, that are small: 32 MB
_WIDER_CORE = 5  # columns of S for one of F, where memory allows
_EACH = 8  # entries of a row of a sparse sketch
_CORE_SHARE = 0.1
_FINE, _FINE_CORE = 64, 2048  # units of an entry of an isometry; of all on one side of a core


@dataclass(frozen=True)
class Layout:
    """The releases of one fit.

    Attributes
    ----------
    method : {"dense", "two_sketch", "three_sketch"}
        What is released: A; A F and S'A; or these and S'A T.
    shape : tuple of int
        Shape of A.
    sketch_size, core_size : int
        Columns of F, and of S (and T).
    unit : SketchUnit
        Privacy unit.
    random : bool
        Gaussian sketches are secret coins of the mechanism.
    n_components : int
        Rank that is asked for.
    """

    method: str
    shape: tuple
    sketch_size: int
    core_size: int
    unit: SketchUnit
    random: bool
    n_components: int

    @property
    def shares(self):
        """Shares of the budget: about sqrt(m) : sqrt(n) gives the least error.

        k columns of A F are read off t noisy ones, at a loss of t / (t - k - 1).
        """
        sizes = (self.sketch_size, self.core_size)
        loss = (t / max(t - self.n_components - 1, t / 4) for t in sizes)
        m, n = (math.sqrt(side * more) for side, more in zip(self.shape, loss, strict=True))
        if self.method == "dense":
            return [1.0]
        rest = 1.0 if self.method == "two_sketch" else 1.0 - _CORE_SHARE
        first = rest * m / (m + n)
        return [first, rest - first] + ([_CORE_SHARE] if self.method == "three_sketch" else [])


def chosen_method(estimator, shape):
    """Return the method for a public shape."""
    if estimator.method != "auto":
        return estimator.method
    m, n = shape
    small = m * n <= _DENSE_SIZE or 2 * _sketch_size(estimator) >= n
    return "dense" if small else "two_sketch"


def _sketch_size(estimator):
    least = max(4 * estimator.n_components, 32)
    return least if estimator.sketch_size is None else estimator.sketch_size


def sizes(estimator, shape, *, stream):
    """Return (method, sketch_size, core_size) for a public shape.

    Sketches of a matrix at hand are twice as wide where they are small: what they lose of its tail
    halves. Where the sketches of two sides stay as small, the second is wider still: it sees more
    of the tail (3 to 4% less error, 0 to 2% more where all is noise). Updates would take twice as
    long, and servers must agree whatever rows they hold.
    """
    (m, n), k = shape, estimator.n_components
    method, t = chosen_method(estimator, shape), _sketch_size(estimator)
    ours, wider = estimator.sketch_size is None and not stream, 2
    if ours and 6 * t * (m + n) <= _WIDE_SIZE:
        t *= 2
    if ours and method == "two_sketch" and (1 + _WIDER_CORE) * t * (m + n) <= _WIDE_SIZE:
        wider = _WIDER_CORE
    v = wider * t if estimator.core_size is None else estimator.core_size
    if method != "dense":
        t, v = min(t, n), min(v, m)
        if min(t, v) < k:
            raise ValueError(
                f"sketch_size={t} and core_size={v} must be at least n_components={k}. Got "
                f"{min(t, v)}."
            )
    return method, t, v


def make_layout(estimator, shape, unit):
    """Choose what is released, and refuse what has no bound."""
    method, t, v = sizes(estimator, shape, stream=unit.stream)
    random = estimator.sensitivity_mode == "random" and method != "dense"
    if random:
        _check_random(estimator, unit)
    return Layout(method, tuple(shape), t, v, unit, random, estimator.n_components)


def budget_kinds(estimator):
    """Return the kinds of budgets that fits may have, by their shape; "sketch" of random ones.

    Several fits with one secret sketch have coins in common, and do not add up.
    """
    secret = estimator.sensitivity_mode == "random" and estimator.sketch == "gaussian"
    if not secret or estimator.method == "dense":
        return ("gaussian",)
    if estimator.sketch_seed is not None:
        raise PrivacyError(
            "several fits share the sketch of 'sketch_seed', and what they spend together is not "
            "known. Use sketch_seed=None, or sensitivity_mode='worst_case'."
        )
    return ("gaussian", "sketch") if estimator.method == "auto" else ("sketch",)


def _check_random(estimator, unit):
    """Refuse what averages over a sketch cannot cover."""
    kind = estimator.sketch
    reason = unit.refusal(kind)
    if reason is not None:
        raise ValueError(
            f"sensitivity_mode='random' has no bound for sketch={kind!r} and privacy_unit="
            f"{unit.name!r}: {reason}. Use sketch='gaussian', or sensitivity_mode='worst_case', "
            "which takes exact norms."
        )
    if estimator.oblivious or kind in ("sparse", "srht"):
        return  # single entries meet rows of known norm, whoever knows the sketch
    source = None
    if estimator.sketch_seed is not None:
        source = "sketch_seed is given, so the sketch may be known to those who choose the data"
    elif unit.stream:
        source = "the data arrive after the sketch is drawn"
    if source is not None:
        raise ValueError(
            f"sensitivity_mode='random' counts the sketch as secret noise, and {source}. Use "
            "sensitivity_mode='worst_case' (single entries: with sketch='sparse' at no cost), or "
            "declare with oblivious=True that the data do not depend on the sketch in any way."
        )


def draw_maps(layout, kind, source, first_row=0):
    """Draw the sketches of a layout: SketchMaps in the order of the shares.

    Rows of S are drawn for the rows of A that start at `first_row`: each server has its own.
    """
    if layout.method == "dense":
        return [SketchMap("matrix", layout.shape)]
    m, n = layout.shape if source.most_rows is None else shortened(layout, kind, source.most_rows)
    F = draw_sketch(source, "right", kind, n, layout.sketch_size)
    S = draw_sketch(source, f"left {first_row}", kind, m, layout.core_size)
    maps = [
        SketchMap("right_sketch", layout.shape, None, F),
        SketchMap("left_sketch", layout.shape, S, None),
    ]
    if layout.method == "three_sketch":
        S = draw_sketch(source, f"core, left {first_row}", kind, m, layout.core_size, coarse=True)
        T = draw_sketch(source, "core, right", kind, n, min(layout.core_size, n), coarse=True)
        maps.append(SketchMap("core_sketch", layout.shape, S, T))
    return maps


def shortened(layout, kind, most_rows):
    """Return a shape of A whose sketches have the bounds of those for the true one, or that one.

    Gaussian sketches of known draw, and isometries, have norms that depend on every row.
    """
    m, n = layout.shape
    by_law = layout.random and kind == "gaussian"
    by_entry = kind in ("sparse", "srht") and (layout.unit.single or layout.random)
    if not (by_law or by_entry):
        return m, n
    return min(m, max(most_rows, layout.core_size)), min(n, max(most_rows, layout.sketch_size))


def draw_sketch(source, name, kind, n, size, *, coarse=False):
    """Draw one n x size sketch."""
    if kind == "sparse":
        each = min(_EACH, size)
        positions, signs = source.sparse(name, n, size, each)
        return IntegerSketch(kind, size, math.sqrt(each), None, positions, signs)
    if kind == "srht":
        return IntegerSketch(kind, size, math.sqrt(size), source.hadamard(name, n, size))
    matrix, deviation = source.gaussian(name, (n, size), coarse=coarse)
    if kind == "isometry":
        units = _isometry_units(n) if coarse else _FINE
        Q = np.linalg.qr(matrix.astype(np.float64))[0]
        matrix = np.rint(units * math.sqrt(n) * Q).astype(np.int64)
        return IntegerSketch(kind, size, units * math.sqrt(size), matrix)
    return IntegerSketch(kind, size, deviation * math.sqrt(size), matrix)


def _isometry_units(n):
    """Return the units of an entry for one side of a core: a power of two, fewer for longer sides.

    A is cut to whole numbers, which both sides multiply: at worst by the units times n. Rounding
    the entries of the isometry itself costs little: 4% of its norm at one unit.
    """
    return 2 ** min(int(math.log2(_FINE)), max(0, math.floor(math.log2(_FINE_CORE / n))))


def map_digest(maps, *, left=False):
    """Return a name for the sketches that two states must share: those of the right side.

    `left`: those of both sides, for a state that goes on elsewhere.
    """
    names = hashlib.sha256()
    for sketch in maps:
        names.update(repr((sketch.name, sketch.scale)).encode())
        if sketch.right is not None:
            names.update(np.ascontiguousarray(sketch.right.integers()).tobytes())
        if left and sketch.left is not None:
            names.update(np.ascontiguousarray(sketch.left.integers()).tobytes())
    return names.hexdigest()[:32]


def known_sides(maps_by_rows):
    """Return F and S (or T of the core, and its S) as floats: none where A itself is released.

    The sketches of the rows of each server come in the order of the rows.
    """
    first = maps_by_rows[0]
    if len(first) == 1:
        return ()
    last = len(first) - 1
    right = first[0 if last == 1 else last].right.real()
    return right, np.vstack([maps[last].left.real() for maps in maps_by_rows])

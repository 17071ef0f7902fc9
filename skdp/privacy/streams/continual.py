"""Streams: running sums of private data, released up to a fixed number of times for one charge.

A stream is data in steps: `Stream.add` puts data into the open step, `Stream.open` closes it and
publishes the sum of all steps so far (or of the last ones, with a window). What is protected is in
the contract of `paid_stream`; the mechanisms and their proof are
below. Exact sums of closed steps stay in memory, so a running stream is as secret as the data: it
cannot be copied or pickled, and works in the process that made it only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp._limits import MEMORY, MOST_DENSE, FloatArray
from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import MAX_DRAWS, Bound, Bounded
from skdp.privacy.gate.session import Grant, PrivacySession, wrapping_sum

# Correlated noise for running sums: the two mechanisms and the proof of their sensitivity.
#
# Notation: step j of T contributes X_j, an integer array. One unit changes X_j by D_j, and the
# contract of every stream is that the *sum over time* of the norms ||D_j|| is at most the bound. (A
# bound on the root of the sum of their squares is not enough: 2.7 times too little at T = 33.)
#
# Both mechanisms publish integers y_i = sum_j C_ij X_j + z_i, C a public integer matrix with zeros
# above the diagonal, z_i independent integer Gaussians. Proof: D_j moves the vector (y_i) by
# ||C_.j|| ||D_j||, so a unit moves it by at most max_j ||C_.j|| times the bound (triangle
# inequality), and the streams may depend on earlier answers, since y_i needs no later step (Denisov
# et al. 2022, theorem 2.1). All that is computed from the y_i is post-processing. There is no
# rounding: C is integer, and sums modulo 2**64 do not affect the proof, however large the data are.
#
# - Square root: C is Toeplitz with coefficients near those of (1 - x)^(-1/2).
# - Tree: C_ij is 1 where node i of the dyadic tree holds step j; a step lies in one node a level.


MECHANISMS = ("auto", "sqrt", "tree")

Node = tuple[int, int]  # (level, index): steps index * 2**level + 1 .. (index + 1) * 2**level


def square_root_coefficients(horizon: int) -> NDArray[np.int64]:
    """Return integers near 2**b binom(2j, j) / 4**j, the series of (1 - x)^(-1/2).

    Rounding by at most 1/2 adds horizon/12 to the squared norm 4**b (ln(horizon)/pi + 1.06) of a
    row of the inverse, to first order; b keeps this below one percent. Coarser is better: the unit
    of the steps, of which the largest coefficient is a multiple, gets finer.
    """
    j = np.arange(1, horizon, dtype=np.float64)
    exact = np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j)))
    bits = math.ceil(math.log2(2.6 * horizon) / 2)
    rounded = np.rint(exact * 2.0**bits).astype(np.int64)
    return np.asarray(rounded // np.gcd.reduce(rounded))


def prefix_weights(coefficients: NDArray[np.int64]) -> FloatArray:
    """Return b with b * c = (1, 1, 1, ...): prefix sums from encoded steps."""
    c = coefficients[1:].astype(np.float64)
    b = np.empty(len(coefficients))
    for n in range(len(b)):
        b[n] = (1.0 - c[:n] @ b[:n][::-1]) / float(coefficients[0])
    return b


def dyadic_cover(start: int, stop: int, levels: int) -> Iterator[Node]:
    """Yield the dyadic nodes, of few levels, that make up the steps start + 1 .. stop."""
    while start < stop:
        largest = (stop - start).bit_length() - 1
        aligned = (start & -start).bit_length() - 1 if start else largest
        level = min(largest, aligned, levels - 1)
        yield level, start >> level
        start += 1 << level


@dataclass(frozen=True)
class StreamSchedule:
    """Mechanism and noise of a stream, from public sizes.

    Attributes
    ----------
    mechanism : {"sqrt", "tree"}
        How the noise is correlated.
    horizon : int
        Number of releases.
    window : int or None
        Each release is the sum of so many last steps (of all steps, with None).
    levels : int
        Levels of the tree that get noise.
    coefficients, weights : ndarray
        Of the square root: encoding, and decoding.
    """

    mechanism: str
    horizon: int
    window: int | None = None
    levels: int = 0
    coefficients: NDArray[np.int64] = field(default_factory=lambda: np.ones(0, np.int64))
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def factor(self) -> float:
        """Norm of the largest column of C: change of all y_i by a contribution of norm 1."""
        if self.mechanism == "tree":
            return math.sqrt(self.levels)
        return float(np.linalg.norm(self.coefficients.astype(np.float64))) * (1 + 1e-12)

    @property
    def unit(self) -> int:
        """Largest coefficient: divides sensitivity and noise scale in the ledger."""
        return 1 if self.mechanism == "tree" else int(self.coefficients[0])

    @property
    def draws(self) -> int:
        """Number of arrays of noise, at most."""
        return self.horizon if self.mechanism == "sqrt" else 2 * self.horizon

    @property
    def note(self) -> str:
        """The note in the ledger."""
        name = "square-root" if self.mechanism == "sqrt" else "tree"
        window = "" if self.window is None else f" of the last {self.window} steps"
        return f", {name} stream of {self.horizon} releases{window}"

    def noise_factor(self, steps: int) -> float:
        """Standard deviation of the release after so many steps, in units of that of one z_i."""
        if self.mechanism == "sqrt":
            return float(np.linalg.norm(self.weights[:steps]))
        start = 0 if self.window is None else max(0, steps - self.window)
        return math.sqrt(sum(1 for _ in dyadic_cover(start, steps, self.levels)))

    def widened(self, bound: Bound, touches: int) -> Bound:
        """Return the bound of all y_i together.

        One unit is in at most `touches` steps. Rounding that the bound of a step leaves out
        (`slack`, `cross`) is added for each.
        """
        times = self.factor * touches
        l2, cross = self.factor * bound.l2, times * bound.cross
        return bound._replace(l2=l2, slack=times * bound.l2_slack, cross=cross, l1=None)


def _check_count(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name!r} must be a positive int. Got {value!r} instead.")
    if value > most:
        raise ValueError(f"{name!r} must be at most {most}. Got {value!r} instead.")
    return int(value)


def stream_schedule(
    size: int, horizon: int, mechanism: str = "auto", window: int | None = None
) -> StreamSchedule:
    """Choose and describe a stream of arrays of `size` numbers, from public sizes.

    Parameters
    ----------
    size : int
        Numbers in one answer.
    horizon : int
        Number of releases.
    mechanism : {"auto", "sqrt", "tree"}
        "sqrt" has less noise, a state of all steps, and prefix sums only. "auto" takes it where
        there is no window and the state stays below 190 MB.
    window : int or None
        Release the last so many steps (tree only).
    """
    horizon = _check_count("horizon", horizon, MAX_DRAWS)
    if mechanism not in MECHANISMS:
        raise ValueError(f"'mechanism' must be one of {MECHANISMS}. Got {mechanism!r} instead.")
    if window is not None:
        window = _check_count("window", window, horizon)
        if mechanism == "sqrt":
            raise ValueError("mechanism='sqrt' has no windows; use 'tree' or 'auto'.")
    # The time of the square root grows with the square of the horizon, its state with the horizon.
    small = horizon <= MOST_DENSE and 16 * size * horizon <= MEMORY
    if mechanism == "sqrt" or (mechanism == "auto" and window is None and small):
        coefficients = square_root_coefficients(horizon)
        weights = prefix_weights(coefficients)
        return StreamSchedule("sqrt", horizon, None, 0, coefficients, weights)
    return StreamSchedule("tree", horizon, window, (window or horizon).bit_length())


Array = NDArray[Any]
Sums = dict[Node, Array]
Read = Callable[[float], Array] | Bounded


def _plus(a: Array, b: Array) -> Array:
    """Add exactly: integers modulo 2**64, floats where epsilon is infinite."""
    return wrapping_sum(a, b) if a.dtype == np.int64 else np.asarray(a + b)


class _Tree:
    """Sums over dyadic nodes. `exact` holds those that will grow (secret), `noised` public ones.

    Without a window only left children get noise: prefixes are made of those. With one, every
    node does. A node gets noise once, when its last step closes, and is kept while it is needed.
    """

    def __init__(self, schedule: StreamSchedule) -> None:
        self._schedule = schedule
        self.exact: dict[int, Array] = {}
        self.noised: Sums = {}

    def _ending(self, steps: int, step: Array) -> tuple[Sums, int, Array]:
        """Return the nodes that get noise when a step closes, and the (level, sum) that grows."""
        sums, total, level = {}, step, 0
        while True:
            left_child = bool(steps >> level & 1)
            if left_child or self._schedule.window is not None:
                sums[level, (steps >> level) - 1] = total
            if left_child or level + 1 == self._schedule.levels:
                return sums, level, total
            total, level = _plus(self.exact[level], total), level + 1

    def ending(self, steps: int, step: Array) -> Sums:
        return self._ending(steps, step)[0]

    def close(self, steps: int, step: Array, noised: Sums) -> None:
        _, level, total = self._ending(steps, step)
        for merged in range(level):
            del self.exact[merged]
        if level + 1 < self._schedule.levels:
            self.exact[level] = total
        window = self._schedule.window
        known = self.noised | noised
        if window is None:
            kept = list(dyadic_cover(0, steps, self._schedule.levels))
        else:
            kept = [node for node in known if node[1] << node[0] >= steps - window]
        self.noised = {node: known[node] for node in kept}

    def total(self, start: int, steps: int) -> tuple[Array, int]:
        """Return the noisy sum of steps start + 1 .. steps, and of how many nodes it is made."""
        nodes = [self.noised[node] for node in dyadic_cover(start, steps, self._schedule.levels)]
        total = nodes[0]
        for node in nodes[1:]:
            total = _plus(total, node)
        return total, len(nodes)

    def state(self) -> dict[str, Any]:
        return {
            "exact": {str(level): value for level, value in self.exact.items()},
            "noised": pack_sums(self.noised),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.exact = {int(level): value for level, value in state["exact"].items()}
        self.noised = unpack_sums(state["noised"])


class _SquareRoot:
    """All exact steps (secret), and all encoded ones with their noise (public)."""

    def __init__(self, schedule: StreamSchedule) -> None:
        self._schedule = schedule
        self._past: list[Array] = []
        self._encoded: list[Array] = []

    def ending(self, steps: int, step: Array) -> Sums:
        c = self._schedule.coefficients
        total = step.reshape(-1) * c[0]  # flat: a numpy scalar would warn where it wraps
        product = np.empty_like(total)
        for j, past in enumerate(self._past):
            np.multiply(past.reshape(-1), c[steps - 1 - j], out=product)
            total += product
        return {(0, steps - 1): total.reshape(step.shape)}

    def close(self, steps: int, step: Array, noised: Sums) -> None:
        self._past.append(step)
        self._encoded.append(noised[0, steps - 1].astype(np.float64))

    def total(self, start: int, steps: int) -> tuple[Array, int]:
        total = np.zeros_like(self._encoded[0])
        product = np.empty_like(total)
        for j, encoded in enumerate(self._encoded):
            np.multiply(encoded, self._schedule.weights[steps - 1 - j], out=product)
            total += product
        return total, 1

    def state(self) -> dict[str, Any]:
        return {"past": list(self._past), "encoded": list(self._encoded)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._past, self._encoded = list(state["past"]), list(state["encoded"])


def pack_sums(sums: Sums) -> dict[str, Array]:
    """Write nodes as text."""
    return {f"{level} {index}": value for (level, index), value in sums.items()}


def unpack_sums(packed: Mapping[str, Array]) -> Sums:
    """Undo `pack_sums`."""
    nodes = {key: key.split() for key in packed}
    return {(int(level), int(index)): packed[key] for key, (level, index) in nodes.items()}


class Stream:
    """Running sums over steps that may be released a fixed number of times, paid in advance.

    Made by `paid_stream`. It has the interface of an `Accumulator` that can be opened
    more than once.

    Attributes
    ----------
    schedule : StreamSchedule
        Mechanism, horizon and window: public.
    bound : Bound
        Of everything that one unit contributes.
    steps : int
        How many steps were closed, each by one release.
    """

    def __init__(self, grant: Grant, schedule: StreamSchedule, bound: Bound) -> None:
        self._grant = grant
        self.schedule = schedule
        self.bound = bound
        self.steps = 0
        self._whole = True
        levels = schedule.levels or schedule.horizon.bit_length()
        tree = replace(schedule, mechanism="tree", levels=levels)
        roots = schedule.mechanism == "sqrt" and grant.step
        self._memory = _SquareRoot(schedule) if roots else _Tree(tree)
        self._step = self._grant.nothing()

    @property
    def left(self) -> int:
        """How many releases are left."""
        return self.schedule.horizon - self.steps

    @property
    def step(self) -> float:
        """Unit of the integers (0 where epsilon is infinite)."""
        return self._grant.step

    def check_running(self) -> None:
        """Raise unless data may be added here and now."""
        if not self._whole:
            raise PrivacyError("this stream was interrupted while it closed a step; restore it.")
        if self.left <= 0:
            raise PrivacyError(
                f"all {self.schedule.horizon} releases of {self.bound.name!r} were made; what is "
                "added now would never be released. Open a new stream, with a larger horizon."
            )

    # -- reading and drawing: nothing changes --------------------------------------------------

    def read(self, answer: Read) -> Array:
        """Read one part of the data through the gate."""
        self.check_running()
        if isinstance(answer, Bounded):
            if answer.bound != self.bound:
                raise PrivacyError(f"{answer.bound.name!r} is not what its stream was paid for")
            answer = answer.answer
        return self._grant._session._read(answer, self._grant)

    def ending(self, part: Array | None = None) -> Sums:
        """Draw the noise of the sums that end with the open step, `part` included."""
        self.check_running()
        step = self._step if part is None else _plus(self._step, part)
        sums = self._memory.ending(self.steps + 1, step)
        return {node: self._noised(exact, node) for node, exact in sums.items()}

    def _noised(self, exact: Array, node: Node) -> Array:
        """Add new noise: called once for a node; the result may become public."""
        return wrapping_sum(exact, self._grant.draw(*node)) if self._grant.step else exact

    # -- changing state: nothing can fail ------------------------------------------------------

    def take(self, part: Array) -> None:
        """Add a part that was read to the open step."""
        self._step = _plus(self._step, part)

    def close(self, noised: Sums) -> None:
        """Close the open step with its noisy sums."""
        self._whole = False
        self._memory.close(self.steps + 1, self._step, noised)
        self.steps += 1
        self._step = self._grant.nothing()
        self._whole = True

    # -- adding and releasing ------------------------------------------------------------------

    def add(self, answer: Read) -> None:
        """Add one part of the data to the open step."""
        with self._grant._session.lock:
            self.take(self.read(answer))

    def open(self) -> Answer:
        """Close the step and publish the sum. After the last release, and later, this raises."""
        with self._grant._session.lock:
            self.close(self.ending())
            return self.answer()

    def answer(self) -> Answer:
        """Return the last release again, unchanged: it is public."""
        if not self.steps:
            raise PrivacyError("nothing was released yet: close a step with open() first")
        window = self.schedule.window
        start = 0 if window is None else max(0, self.steps - window)
        total, nodes = self._memory.total(start, self.steps)
        if isinstance(self._memory, _SquareRoot):
            return self._grant.decoded(total, self.schedule.noise_factor(self.steps))
        return self._grant.decoded(total, float(np.sqrt(nodes)))

    # -- secret state --------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: two copies would release the same steps with other noise."""
        raise PrivacyError(
            "a running stream holds exact sums of private data and cannot be copied or pickled. "
            "Use checkpoint() and keep the file like the data; or publish what was released."
        )

    def state(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint. As secret as the data."""
        return {"steps": self.steps, "step": self._step, "memory": self._memory.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Undo `state`."""
        self.steps, self._step = int(state["steps"]), state["step"]
        self._memory.load(state["memory"])

    @property
    def state_bytes(self) -> int:
        """Memory of the state: a public number."""
        return _nbytes(self.state())


def paid_stream(
    session: PrivacySession,
    bound: Bound,
    share: float,
    horizon: int,
    *,
    mechanism: str = "auto",
    window: int | None = None,
    touches: int | None = None,
) -> Stream:
    """Charge `horizon` releases of running sums at once; data are added in steps.

    The contract: the *sum over time* of the norms of what one unit changes is at most
    ``bound.l2``. It is enough that a unit's data come in one step, within the bound of a query.
    How many steps there are, and when they close, is public.

    Parameters
    ----------
    session : PrivacySession
        The session that is charged.
    bound : Bound
        Bound on all contributions of one unit.
    share : float
        Share of the budget.
    horizon, mechanism, window
        See `stream_schedule`; each release closes one step.
    touches : int or None
        How many steps a unit can change, for rounding that `bound.l2` leaves out; None: all.
    """
    if session.budget.pure:
        raise ValueError("a stream needs delta > 0: its noise is Gaussian. Got delta=0.")
    if bound.law is not None:
        raise PrivacyError("random sketches need StreamGroup.paid_sketches")
    schedule = stream_schedule(bound.size, horizon, mechanism, window)
    wide = schedule.widened(bound, schedule.horizon if touches is None else touches)
    grant = session.grant(
        wide, share, note=schedule.note, openings=schedule.draws, unit=schedule.unit
    )
    return Stream(grant, schedule, bound)


def _nbytes(item: Any) -> int:
    if isinstance(item, np.ndarray):
        return item.nbytes
    values = item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
    return sum(map(_nbytes, values))

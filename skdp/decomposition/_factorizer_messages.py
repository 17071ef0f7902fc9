"""Noisy states of servers: as messages, merged, and what they cost together. All is public."""

import hashlib
import math
from dataclasses import dataclass, field, fields, replace

import numpy as np

from skdp._packing import pack, unpack
from skdp.answer import Answer
from skdp.decomposition._factorizer_layout import map_digest
from skdp.exceptions import PrivacyError
from skdp.privacy.streams.merged import merged_receipt, receipt_state

VERSION = 3
_MAGIC = b"skdp.factorizer\n"
_DIGEST = 32


@dataclass(frozen=True, eq=False)
class NoisyState:
    """Noisy sketches of one server: what a message holds. Everything in it is public."""

    method: str
    shape: tuple
    first_row: int
    digest: str
    steps: list
    variances: list
    arrays: list = field(repr=False)
    honest_servers: int | None = None
    receipts: list = field(default_factory=list)

    @property
    def protects(self):
        """What a neighbour is: unit, adjacency, and the caller's bound."""
        receipt = self.receipts[0]
        return receipt["unit"], receipt["adjacency"], receipt["sensitivity"]

    def fingerprint(self):
        """Return a name of the opened numbers (never of a part of the noise)."""
        return hashlib.sha256(b"".join(a.tobytes() for a in self.arrays)).hexdigest()

    def to_bytes(self):
        """Write a message: a magic line, a header, integers, and a checksum."""
        message = _MAGIC + pack(dict(vars(self), version=VERSION))
        return message + hashlib.sha256(message).digest()

    @staticmethod
    def from_bytes(message):
        """Read a message; a damaged or foreign one is a ValueError."""
        message = bytes(message)
        body, checksum = message[:-_DIGEST], message[-_DIGEST:]
        if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != checksum:
            raise ValueError("the message is damaged or was not made by DPLowRankFactorizer.")
        header = unpack(body[len(_MAGIC) :])
        known = {field.name for field in fields(NoisyState)}
        if header.pop("version", None) != VERSION or set(header) != known:
            raise ValueError("the message is of another version; use one version on all servers.")
        paid = [receipt["ledger"] for receipt in header["receipts"]]
        if header["honest_servers"] is not None or len(paid) != 1 or not paid[0]:
            raise ValueError("the message has no receipt of a whole noise of its own.")
        header["shape"] = tuple(header["shape"])
        return NoisyState(**header)


def contract(unit):
    """Return the caller's bound where that is part of what a neighbour is, else None."""
    return unit.sensitivity if unit.name in ("frobenius", "rank_one") else None


def header_of(running):
    """Return what others may know before a state is opened: a NoisyState without arrays."""
    session, params = running.session, running.group.notes["params"]
    receipt = receipt_state(session.spent(), session.ledger)
    receipt["sensitivity"] = contract(running.layout.unit)
    steps, scales = zip(*running.group.steps(), strict=True)
    return NoisyState(
        running.layout.method, running.layout.shape, params["first_row"], map_digest(running.maps),
        list(steps), [s**2 for s in scales], [], params["honest_servers"], [receipt],
    )  # fmt: skip


def opened(running):
    """Open a state: a NoisyState, all of it public (or one part of a sum)."""
    return replace(header_of(running), arrays=running.group.close())


def check_alike(state, other):
    """Refuse to merge states of other sketches, shapes or noise."""
    for name, remedy in (
        ("method", "one 'method'"),
        ("digest", "one 'sketch_seed' and equal sketch parameters"),
        ("honest_servers", "states that are all noisy, or all parts of the noise"),
        ("protects", "one 'privacy_unit', 'adjacency' and 'sensitivity'"),
    ):
        if getattr(state, name) != getattr(other, name):
            raise ValueError(f"states with different {name} cannot be merged; use {remedy}.")
    if state.shape[1] != other.shape[1] or (
        state.first_row == other.first_row and state.shape != other.shape
    ):
        raise ValueError(f"states of shapes {state.shape} and {other.shape} cannot be merged.")


def check_message(received, message, unit):
    """Refuse the header of a state that cannot be added, before that state is opened."""
    own = (unit.name, unit.adjacency, contract(unit))
    if message.protects != own:
        raise ValueError(
            "states with different protects cannot be merged; use one 'privacy_unit', "
            f"'adjacency' and 'sensitivity'. Got {message.protects}, and {own} here."
        )
    if received:
        check_alike(received[0], message)
        receipt_of([*received, message])


def check_new(states, message):
    """Refuse a message that does not match, or that was merged already: noise never repeats."""
    for state in states:
        check_alike(state, message)
        same = zip(state.arrays, message.arrays, strict=True)
        if any(state.variances) and all(np.array_equal(a, b) for a, b in same):
            raise ValueError("this state was merged already: its data would count twice.")


def check_complete(states):
    """Refuse states that do not match, or rows that are missing, before anything is opened."""
    for other in states[1:]:
        check_alike(states[0], other)
    blocks = {state.first_row: state.shape for state in states}
    if any(blocks[state.first_row] != state.shape for state in states):
        raise ValueError("states that begin at one row must have one shape.")
    place = 0
    for first in sorted(blocks):
        if first != place:
            raise ValueError(f"rows {place} to {first - 1} do not come from one server each.")
        place += blocks[first][0]


def added(states):
    """Add up states of servers: those of the same rows first, then blocks of rows."""
    blocks = {}
    for state in states:
        values = [a * (step or 1.0) for a, step in zip(state.arrays, state.steps, strict=True)]
        old = blocks.get(state.first_row)
        if old is None:
            blocks[state.first_row] = (state.shape[0], values, list(state.variances))
        else:
            sums = [a + b for a, b in zip(old[1], values, strict=True)]
            noise = [a + b for a, b in zip(old[2], state.variances, strict=True)]
            blocks[state.first_row] = (old[0], sums, noise)
    return [(first, *blocks[first]) for first in sorted(blocks)]


def stacked(method, blocks):
    """Return the released sketches of all rows as answers."""
    names = {"dense": (True,), "two_sketch": (True, False), "three_sketch": (True, False, False)}
    out = []
    for i, by_rows in enumerate(names[method]):
        values, variances = [b[2][i] for b in blocks], [b[3][i] for b in blocks]
        if by_rows:
            weights = [b[1] for b in blocks]
            mean = sum(w * v for w, v in zip(weights, variances, strict=True)) / sum(weights)
            out.append(Answer(np.vstack(values), math.sqrt(mean)))
        else:
            out.append(Answer(sum(values), math.sqrt(sum(variances))))
    return out


def receipt_of(states):
    """Return (receipt, ledger) of opened states; PrivacyError where none is known."""
    blocks, end = [], 0
    for state in sorted(states, key=lambda state: state.first_row):
        if not blocks or state.first_row >= end:  # else they may hold parts of one row
            blocks.append([])
        blocks[-1].append(state.receipts)
        end = max(end, state.first_row + state.shape[0])
    return merged_receipt(blocks, clipped_rows=states[0].protects[0] == "row")


def all_spent(headers, received, sent):
    """Return the receipt of what is opened here, and of what this server opened for others."""
    known = {state.fingerprint() for state in received if state.honest_servers is None}
    return receipt_of([*headers, *(state for name, state in sent if name not in known)])


def check_parts(states):
    """Refuse headers of states that are no parts of one sum, before any is closed."""
    if not states:
        raise ValueError("a secure sum needs at least one server.")
    first = states[0]
    for other in states[1:]:
        check_alike(first, other)
        same_rows = other.first_row == first.first_row
        if other.steps != first.steps or other.shape != first.shape or not same_rows:
            raise ValueError("parts of a secure sum need equal steps and shapes.")
    if first.honest_servers is None:
        raise PrivacyError("a secure sum adds parts of the noise: set 'honest_servers'.")
    if len(states) < first.honest_servers:
        raise PrivacyError("fewer servers than 'honest_servers': the sum has too little noise.")
    receipt_of([replace(first, receipts=[r for state in states for r in state.receipts])])


def secure_total(states, aggregator):
    """Add parts through an aggregator: list of equal int64 arrays -> their sum modulo 2**64."""
    first = states[0]
    flat = [np.concatenate([a.reshape(-1) for a in state.arrays]) for state in states]
    total = np.asarray(aggregator(flat))
    if total.dtype != np.int64 or total.shape != flat[0].shape:
        raise ValueError("the aggregator must return an int64 array of the shape of its inputs.")
    arrays, place = [], 0
    for a in first.arrays:
        arrays.append(total[place : place + a.size].reshape(a.shape))
        place += a.size
    more = len(states) / first.honest_servers
    variances = [more * v for v in first.variances]
    receipts = [r for state in states for r in state.receipts]
    return replace(first, arrays=arrays, variances=variances, receipts=receipts)

"""Parts of the data that no unit shares: together they cost as much as the dearest of them.

*Proof.* A public rule that looks at one unit alone puts it in one part at most. Let neighbours
differ in a unit of part p. A fit in another part gets the same rows from both, so given the answers
so far its law is the same: it adds nothing, whatever it is chosen by. The fits with the unit are
those of p and those outside all parts. A filter that affords them for every p affords all.

*Where it is false.* A replaced unit may leave one part and enter another: it touches both. An edge
joins two nodes that may lie in two parts. A change of bounded norm reaches every part. The rows of
a group are in one part only if the rule is a rule of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import product
from typing import TypeAlias

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.ledger.fits import LedgerFit, Part

# What a neighbour differs in, where it stays in one part of a rule that does not look at it.
_STAYS = (
    ("row", "add_remove"),
    ("group", "add_remove"),
    ("interaction", "add_remove"),
    ("entry", "add_remove"),
    ("entry", "replace"),
    ("label", "add_remove"),
    ("label", "replace"),
)


class _Open:
    """A part whose block has not ended: what was started in it may go on after it."""

    def __init__(self, part: Part) -> None:
        self.part: Part | None = part


# Token of a ledger -> the part that this context is in.
_PARTS: ContextVar[dict[str, _Open] | None] = ContextVar("skdp_parts", default=None)
Chooser: TypeAlias = Callable[[str], AbstractContextManager[None]]


def part_of(token: str) -> Part | None:
    """Return the part of a ledger that this context is in."""
    chosen = (_PARTS.get() or {}).get(token)
    return None if chosen is None else chosen.part


@contextmanager
def parts_of(token: str, key: str, parts: Sequence[str], whole_groups: bool) -> Iterator[Chooser]:
    """Yield a function that opens the block of one part."""
    names = tuple(parts)
    if isinstance(parts, str) or len(set(names)) != len(names) or not names:
        raise ValueError(f"'parts' must be a list of names that differ. Got {parts!r}.")
    if not all(isinstance(name, str) and name for name in (key, *names)):
        raise ValueError(f"'key' and 'parts' must be text. Got {key!r} and {parts!r}.")
    ended: list[bool] = []

    @contextmanager
    def part(name: str) -> Iterator[None]:
        if ended:
            raise PrivacyError(f"the parts of {key!r} have ended.")
        if name not in names:
            raise ValueError(f"{name!r} is no part of {key!r}; these are {names}.")
        if part_of(token) is not None:
            raise PrivacyError(f"{name!r}: a part has no parts of its own; leave the first one.")
        chosen = _Open(Part(key, tuple(sorted(names)), name, whole_groups))
        before = _PARTS.set({**(_PARTS.get() or {}), token: chosen})
        try:
            yield
        finally:
            _PARTS.reset(before)
            chosen.part = None

    try:
        yield part
    finally:
        ended.append(True)


def check_part(part: Part, fit: LedgerFit, factor: float, entries: Iterable[LedgerFit]) -> None:
    """Refuse a fit that has no place in a part."""
    if factor != 1.0 or (fit.unit, fit.adjacency) not in _STAYS:
        raise PrivacyError(
            f"one {fit.unit} ({'replace' if factor > 1 else fit.adjacency}) may touch more than "
            f"one part of {part.key!r}, so that all parts count: fit {fit.estimator} outside of "
            "'disjoint', or use adjacency='add_remove' where it is offered."
        )
    if fit.unit == "group" and not part.whole_groups:
        raise PrivacyError(
            f"the rows of one group may lie in several parts of {part.key!r}. If the rule puts all "
            "rows of a group into one part, say so: ledger.disjoint(..., whole_groups=True)."
        )
    for other in entries:
        known = other.part
        if known is not None and known.key == part.key and known.rule() != part.rule():
            raise PrivacyError(
                f"{part.key!r} had the parts {known.parts}, and now {part.parts}: another rule "
                "needs another 'key'."
            )


def one_part_each(fits: Sequence[LedgerFit]) -> Iterator[list[LedgerFit]]:
    """Yield the fits of a unit, for each way in which it can lie in the parts.

    Of parts with Gaussian fits alone, the dearest stands for all.
    """
    rules: dict[str, dict[str, list[LedgerFit]]] = {}
    for fit in fits:
        if fit.part is not None:
            rules.setdefault(fit.part.key, {}).setdefault(fit.part.name, []).append(fit)
    dear = [_dear(parts.values()) for parts in rules.values()]
    for chosen in product(*dear):
        mine = {id(fit) for part in chosen for fit in part}
        yield [fit for fit in fits if fit.part is None or id(fit) in mine]


def _dear(parts: Iterable[list[LedgerFit]]) -> list[list[LedgerFit]]:
    """Return parts that cover all others."""
    found = {}
    for part in parts:
        losses = accounting.compose(loss for fit in part for loss in fit.losses)
        found[losses] = part
    plain = [losses for losses in found if all(loss.kind == "gaussian" for loss in losses)]
    most = max(plain, key=lambda losses: losses[0].value if losses else 0.0, default=None)
    return [part for losses, part in found.items() if losses == most or losses not in plain]

"""The entries of a ledger, in memory or in a file; each change is atomic.

A charge is on the disk before any data are read. A process that is killed between the charge and
the release leaves an open entry, which counts with its whole budget. Writers wait for each other,
so that check and charge are one step. `skdp.privacy.store` describes the guarantees of files.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import Losses, as_text
from skdp.privacy.accounting.plain_data import loss_from_state, loss_state
from skdp.privacy.ledger.balances import IS_SPENT, Balance, Terms, check_part, part_of
from skdp.privacy.ledger.filters import late_kind
from skdp.privacy.ledger.fits import LedgerFit, Part, multiplied, new_token
from skdp.privacy.store import START, Chain, Position, Store, is_database, verify

# The book of a ledger: its entries, and how they change. One change at a time, or none.


class Book:
    """Entries in the memory of this process.

    Subclasses that store entries elsewhere override `held`. Inside its block nothing else may
    change the entries; at its end changes are stored, or undone after an error.
    """

    def __init__(self, terms: Terms, note: str = "") -> None:
        if not isinstance(note, str) or "\0" in note:
            raise ValueError(f"'note' must be a text without null characters. Got {note!r}.")
        self.terms, self.note = terms, note
        self.token = new_token()
        self.refused: list[tuple[type[PrivacyError], str]] = []  # no tracebacks: they hold X
        self._now = Balance(terms, {})
        self._last = 0
        self._lock, self._process = threading.RLock(), os.getpid()

    @contextmanager
    def held(self) -> Iterator[Balance]:
        """Lock the entries, and yield their balance to read or change it."""
        with self._lock, self._now.changing():
            yield self._now

    def balance(self) -> Balance:
        """Return the present balance."""
        with self.held() as now:
            return now.copy()

    def note_refusal(self, error: PrivacyError) -> None:
        """Store the reason of a rejected fit, for the end of the block."""
        self.refused.append((type(error), str(error)))

    @contextmanager
    def _changing(self) -> Iterator[Balance]:
        try:
            with self.held() as balance:
                yield balance
        except PrivacyError as error:
            self.note_refusal(error)
            raise

    # -- as a payer of fits ----------------------------------------------------------------
    def reserve(self, fit: LedgerFit) -> int:
        """Charge the whole budget of a fit that is about to start, or refuse."""
        with self._changing() as balance:
            balance.check_kind(fit)
            factor = balance.factor(fit)
            if (part := part_of(self.token)) is not None:
                check_part(part, fit, factor, balance.parts)
            losses = multiplied(fit.losses, factor)
            charged = replace(
                fit, losses=losses, factor=factor, promised=losses, part=part, note=self.note
            )
            key = self._last = self._last + 1
            balance.put(key, charged)
            if not balance.affords():
                balance.put(key, None)
                alone = Balance(self.terms, {0: charged}).spent()
                name = getattr(self, "dataset", "") or self.note
                left, total = balance.remaining(part=part), Balance(self.terms, {}).remaining()
                remedy = "Use a smaller 'epsilon' or fewer fits"
                remedy = f"{remedy}{', with delta=0' * (not self.terms.cap.delta)}."
                twice = f", as adjacency={fit.adjacency!r} costs twice its mu here"
                raise BudgetExceededError(
                    f"{fit.estimator} asks for epsilon={alone.epsilon:.4g}{twice * (factor > 1)}; "
                    f"{f'PrivacyLedger {name!r}' if name else 'this PrivacyLedger'} has "
                    f"epsilon={left:.4g} left, both at delta={self.terms.cap.delta:.3g}. The data "
                    f"were not touched. {IS_SPENT if left < 1e-4 * total else remedy}"
                )
        return key

    def check_same_part(self, key: int) -> None:
        """Refuse to continue a fit outside the part of the data in which it began."""
        with self._changing() as balance:
            fit = balance.entries[key]
            if fit.part not in (None, part_of(self.token)):
                raise PrivacyError(
                    f"{fit.estimator} was charged inside one part of the data, and continues "
                    "outside it. Continue inside the same part."
                )

    def recharge(self, key: int, losses: Losses) -> None:
        """Replace a reservation by a loss of another kind, before it is granted, or refuse."""
        with self._changing() as balance:
            fit, fits = balance.entries[key], list(balance.entries.values())
            sketched = any(loss.kind == "sketch" for loss in fits[0].promised)
            if not sketched and any(each.state != "open" for each in fits):
                # Others released: these losses would need another rule of composition.
                raise PrivacyError(f"{fit.estimator}: {late_kind(losses)}")
            costs = fit.costs(losses)
            balance.put(key, replace(fit, losses=costs, promised=costs))
            if not balance.affords():
                raise BudgetExceededError(
                    f"{fit.estimator} asks for {as_text(losses)}, which costs more than a Gaussian "
                    "release after other fits. The data were not touched. Use a smaller "
                    "'epsilon' or a larger ledger."
                )

    def scale(self, key: int, parts: float) -> None:
        """Charge a fit `parts` times its loss (Gaussian or of sketches) from now on, or refuse."""
        with self._changing() as balance:
            fit = balance.entries[key]
            losses = tuple(loss.times(parts / fit.parts) for loss in fit.losses)
            balance.put(key, replace(fit, losses=losses, parts=parts))
            if parts > fit.parts and not balance.affords():
                raise BudgetExceededError(
                    f"other servers hold parts of the rows of {fit.estimator}, so under a secure "
                    f"sum it costs {as_text(losses)}. Nothing was released. Use a smaller "
                    "'epsilon' or a larger ledger."
                )

    def settle(self, key: int, granted: Losses, state: str) -> None:
        """Replace a reservation by what was granted; if nothing was granted, remove it."""
        if self._process != os.getpid():  # in a forked copy; the fit goes on in the parent
            return
        with self.held() as balance:
            fit = balance.entries[key]
            if not granted and state == "failed":
                balance.put(key, None)
                return
            losses = fit.costs(granted)
            balance.put(key, replace(fit, losses=losses, state=state))
            grown = fit.state != "open" and losses != fit.losses
            exceeded = grown and not balance.affords()
        if exceeded:  # the release has happened, so the entry stays
            error = BudgetExceededError(f"{fit.estimator} released more after it was settled.")
            self.note_refusal(error)
            raise error


# The lines of a ledger file: its datasets, their terms, and every change of a fit.


FORMAT = "skdp ledger 3"
_FORM = int.from_bytes(b"skL3")
_LOSS_FIELDS = ("losses", "promised")


def line_as_record(line: dict[str, Any]) -> bytes:
    """Return a line as it is written and hashed."""
    return json.dumps(line, sort_keys=True).encode()


class FitUpdate(NamedTuple):
    """One line about a fit: its state from then on (None: it cost nothing)."""

    at: str
    number: int
    fit: LedgerFit | None


@dataclass
class Dataset:
    """One dataset: a budget of its own, all changes of its fits, and what they come to."""

    name: str
    terms: Terms
    token: str
    changes: list[FitUpdate] = field(default_factory=list)
    last: int = 0  # number of a fit in use: that of one that cost nothing is not used again

    def __post_init__(self) -> None:
        self.now = Balance(self.terms, {})

    def take(self, change: FitUpdate) -> None:
        """Take in one more change."""
        self.changes.append(change)
        self.last = max(self.last, change.number)
        self.now.put(change.number, change.fit)


class Registry:
    """All datasets of a file; it takes in line after line, verified ones.

    Parameters
    ----------
    name : str
        Of the file, for errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.hashes: list[str] = []
        self.datasets: dict[str, Dataset] = {}

    def take(self, record: bytes, written: str) -> None:
        """Take in one more line, with its hash."""
        line = json.loads(record)
        self.lines.append(line)
        self.hashes.append(written)
        if "terms" in line:
            dataset = Dataset(line["dataset"], Terms(**line["terms"]), line["token"])
            self.datasets[dataset.name] = dataset
        elif "fit" in line:
            change = FitUpdate(line["at"], line["number"], _fit_from_state(line["fit"]))
            self.datasets[line["dataset"]].take(change)

    def read(self, chain: Chain, *, whole: bool = False) -> None:
        """Read the new lines of a file; `whole`: verify the earlier lines once more."""
        chain.check_has(self.place)
        known = len(self.lines) if whole else 0
        for row in chain.after(START if whole else self.place)[known:]:
            self.take(*row)

    def add(self, chain: Chain, **line: Any) -> None:
        """Write one more line, with the time."""
        line["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        record = line_as_record(line)
        self.take(record, chain.add(record))

    @property
    def place(self) -> Position:
        """The number and the hash of the last line."""
        return len(self.lines), self.file_hash

    @property
    def file_hash(self) -> str:
        """The hash over everything so far."""
        return self.hashes[-1] if self.hashes else ""

    def choose(self, name: str | None) -> Dataset:
        """Return a dataset; without a name, the only one."""
        if name is None and len(self.datasets) == 1:
            return next(iter(self.datasets.values()))
        if name not in self.datasets:
            known = ", ".join(map(repr, self.datasets)) or "none"
            if name is None and self.datasets:
                raise PrivacyError(f"say which 'dataset' of {self.name}: it has {known}.")
            raise PrivacyError(f"{self.name} has no dataset {name!r}. It has {known}.")
        return self.datasets[name]

    def with_token(self, token: str) -> Dataset:
        """Return the dataset that was announced."""
        for dataset in self.datasets.values():
            if dataset.token == token:
                return dataset
        raise PrivacyError(f"{self.name} lacks the dataset that a parent process has opened.")

    def export(self) -> str:
        """Return everything as JSON; `read_registry` reads and verifies it."""
        pairs = zip(self.lines, self.hashes, strict=True)
        lines = [line | {"hash": written} for line, written in pairs]
        return json.dumps({"format": FORMAT, "lines": lines}, indent=1)


_KEPT: dict[str, Registry] = {}  # path -> what this process has read and verified


@contextmanager
def locked_registry(
    path: str, *, whole: bool = False, create: bool = False
) -> Iterator[tuple[Registry, Chain]]:
    """Lock a file and yield its content; at the end of the block, additions are on the disk.

    What this process has read and verified is kept: only lines that are new are read. `whole`: the
    others are verified once more. `create`: it is made if it is not there.
    """
    with Store(path, _FORM).change(create=create) as chain:
        registry = _KEPT.pop(path, None) or Registry(path)  # an error in here keeps nothing
        registry.read(chain, whole=whole)
        try:
            yield registry, chain
        except PrivacyError:  # a refusal, which changed nothing
            if not chain.added:
                _KEPT[path] = registry
            raise
    _KEPT[path] = registry


def read_registry(path: str | os.PathLike[str]) -> Registry:
    """Read a ledger file, or one that was exported, and verify its hashes."""
    name = os.path.realpath(path)
    registry = Registry(name)
    if is_database(name):
        with Store(name, _FORM).change() as chain:
            registry.read(chain)
        return registry
    try:
        lines = [dict(line) for line in json.loads(Path(name).read_text("utf-8"))["lines"]]
        rows = [(line.pop("hash"), line_as_record(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PrivacyError(f"{name} is neither a PrivacyLedger file nor an export.") from error
    verify(((i, record, written) for i, (written, record) in enumerate(rows, 1)), name)
    for written, record in rows:
        registry.take(record, written)
    return registry


def add_dataset(registry: Registry, chain: Chain, name: str | None, terms: Terms | None) -> Dataset:
    """Return a dataset of a file, which is added if it is not there; other terms are refused."""
    if not registry.datasets and terms is None:
        raise PrivacyError(f"{registry.name} is not a PrivacyLedger.")
    known = bool(registry.datasets) if name is None else name in registry.datasets
    if terms is not None and not known:
        if not registry.lines:
            registry.add(chain, format=FORMAT, file=new_token())
        name = "data" if name is None else name  # "" is another one
        registry.add(chain, dataset=name, token=new_token(), terms=asdict(terms))
    dataset = registry.choose(name)
    if terms is not None and terms != dataset.terms:
        was, got = asdict(dataset.terms), asdict(terms)
        other = [name for name in got if got[name] != was[name]]
        there, here = (", ".join(f"{n}={t[n]!r}" for n in other) for t in (was, got))
        raise ValueError(
            f"{dataset.name!r} in {registry.name} is a PrivacyLedger with other terms: {there}. "
            f"Got {here}."
        )
    return dataset


# -- fits as plain data ---------------------------------------------------------------------------


def fit_state(fit: LedgerFit) -> dict[str, Any]:
    """Return a fit as plain data."""
    state: dict[str, Any] = {each.name: getattr(fit, each.name) for each in fields(fit)}
    for name in _LOSS_FIELDS:
        state[name] = [loss_state(loss) for loss in state[name]]
    return state | {"part": fit.part and asdict(fit.part)}


def _fit_from_state(state: dict[str, Any] | None) -> LedgerFit | None:
    if state is None:
        return None
    losses = {name: tuple(loss_from_state(*loss) for loss in state[name]) for name in _LOSS_FIELDS}
    part = state.get("part")
    parts = part and Part(part["key"], tuple(part["parts"]), part["name"], part["whole_groups"])
    return LedgerFit(**(state | losses | {"part": parts}))


class FileBook(Book):
    """Entries of one dataset in a database file, mode 0600.

    Parameters
    ----------
    path : str
        The file.
    terms : Terms or None, default=None
        A dataset that is new is made with them, another must have the same. None: read them.
    dataset : str or None, default=None
        Its name. None: the only one of the file.
    token : str or None, default=None
        In place of the name.
    note : str, default=""
        Of the fits that it is charged for here.
    """

    def __init__(
        self,
        path: str,
        terms: Terms | None = None,
        dataset: str | None = None,
        token: str | None = None,
        note: str = "",
    ) -> None:
        self.path = os.path.realpath(path)
        with locked_registry(self.path, whole=True, create=terms is not None) as (registry, chain):
            if token is None:
                kept = add_dataset(registry, chain, dataset, terms)
            else:
                kept = registry.with_token(token)
        super().__init__(kept.terms, note)
        self.dataset, self.token = kept.name, kept.token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileBook) and (other.path, other.token) == (self.path, self.token)

    def __hash__(self) -> int:
        return hash((self.path, self.token))

    @contextmanager
    def held(self) -> Iterator[Balance]:
        """Lock the entries of the file; at the end of the block, changes are on the disk."""
        with locked_registry(self.path) as (registry, chain):
            kept = registry.with_token(self.token)
            self._last = kept.last
            with kept.now.changing() as before:
                yield kept.now
                for number, fit in sorted(kept.now.changed(before).items()):
                    state = None if fit is None else fit_state(fit)
                    registry.add(chain, dataset=self.dataset, number=number, fit=state)

    def balance(self) -> Balance:
        """Return the balance of the file, after all lines were verified."""
        with locked_registry(self.path, whole=True) as (registry, _):
            return registry.with_token(self.token).now.copy()

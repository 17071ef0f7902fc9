"""What the lines of a ledger file say: its datasets, their terms, and every change of a fit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.states import loss_from_state, loss_state
from skdp.privacy.ledger.balances import Balance, Terms
from skdp.privacy.ledger.chain import Chain, Line, transaction, verified
from skdp.privacy.ledger.fits import LedgerFit, Part
from skdp.privacy.ledger.scope import new_token

FORMAT = "skdp ledger 2"
_LOSSES = ("losses", "promised")


@dataclass(frozen=True)
class Change:
    """One line about a fit: what it looked like from then on (None: it cost nothing)."""

    at: str
    number: int
    fit: LedgerFit | None


@dataclass
class Dataset:
    """One dataset: a budget of its own, and all changes of its fits, oldest first."""

    name: str
    terms: Terms
    token: str
    since: str
    changes: list[Change] = field(default_factory=list)

    @property
    def entries(self) -> dict[int, LedgerFit]:
        """The fits as they stand now."""
        now: dict[int, LedgerFit | None] = {change.number: change.fit for change in self.changes}
        return {number: fit for number, fit in sorted(now.items()) if fit is not None}

    def balance(self) -> Balance:
        """Return what stands there now."""
        return Balance(self.terms, self.entries)


class Registry:
    """All datasets of a file.

    Parameters
    ----------
    lines : iterable of Line
        Lines, verified.
    hashes : list of str
        Their hashes.
    name : str
        Of the file, for errors.
    """

    def __init__(self, lines: Iterable[Line], hashes: list[str], name: str) -> None:
        self.name, self.hashes = name, hashes
        self.lines = list(lines)
        self.datasets: dict[str, Dataset] = {}
        for line in self.lines:
            if "terms" in line:
                dataset = Dataset(
                    line["dataset"], Terms(**line["terms"]), line["token"], line["at"]
                )
                self.datasets[dataset.name] = dataset
            elif "fit" in line:
                change = Change(line["at"], line["number"], _fit_from_state(line["fit"]))
                self.datasets[line["dataset"]].changes.append(change)

    @property
    def head(self) -> str:
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
        raise PrivacyError(f"{self.name} has not the dataset that is open around this process.")

    def export(self) -> str:
        """Return everything as JSON; `read_registry` reads and verifies it."""
        pairs = zip(self.lines, self.hashes, strict=True)
        lines = [line | {"hash": written} for line, written in pairs]
        return json.dumps({"format": FORMAT, "lines": lines}, indent=1)


def registry_of(chain: Chain, path: str) -> Registry:
    """Return what the lines of a file say."""
    return Registry(chain.lines, chain.hashes, path)


def read_registry(path: str | os.PathLike[str]) -> Registry:
    """Read a ledger file, or one that was exported, and verify its hashes."""
    name = os.path.realpath(path)
    try:
        with open(name, "rb") as file:
            exported = file.read(1) == b"{"
    except OSError:  # said below
        exported = False
    if not exported:
        with transaction(name) as chain:
            return registry_of(chain, name)
    try:
        state = json.loads(Path(name).read_text(encoding="utf-8"))
        rows = [(dict(line), line["hash"]) for line in state["lines"]]
    except (ValueError, KeyError, TypeError) as error:
        raise PrivacyError(f"{name} is no exported PrivacyLedger.") from error
    for line, _ in rows:
        del line["hash"]
    return Registry(*verified(rows, name), name)


def add_dataset(chain: Chain, path: str, name: str | None, terms: Terms | None) -> Dataset:
    """Return a dataset of a file, which is added if it is not there; other terms are refused."""
    registry = registry_of(chain, path)
    if not registry.datasets and terms is None:
        raise PrivacyError(f"{path} is no PrivacyLedger.")
    known = bool(registry.datasets) if name is None else name in registry.datasets
    if terms is not None and not known:
        if not chain.lines:
            chain.add(format=FORMAT, file=new_token())
        name = name or "data"
        chain.add(dataset=name, token=new_token(), terms=asdict(terms))
        registry = registry_of(chain, path)
    dataset = registry.choose(name)
    if terms is not None and terms != dataset.terms:
        raise ValueError(
            f"{dataset.name!r} in {path} is a PrivacyLedger with other terms: {dataset.terms}. Got "
            f"{terms}."
        )
    return dataset


# -- fits as plain data ---------------------------------------------------------------------------


def fit_state(fit: LedgerFit) -> dict[str, Any]:
    """Return a fit as plain data."""
    state: dict[str, Any] = {each.name: getattr(fit, each.name) for each in fields(fit)}
    for name in _LOSSES:
        state[name] = [loss_state(loss) for loss in state[name]]
    return state | {"part": fit.part and asdict(fit.part)}


def _fit_from_state(state: dict[str, Any] | None) -> LedgerFit | None:
    if state is None:
        return None
    losses = {name: tuple(loss_from_state(*loss) for loss in state[name]) for name in _LOSSES}
    part = state.get("part")
    parts = part and Part(part["key"], tuple(part["parts"]), part["name"], part["whole_groups"])
    return LedgerFit(**(state | losses | {"part": parts}))

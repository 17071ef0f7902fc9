"""A ledger for people: tables as text and HTML, and what happened as records."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from skdp._tables import aligned
from skdp.privacy.ledger.balances import Balance
from skdp.privacy.ledger.fits import LedgerFit, as_text
from skdp.privacy.ledger.registry import Dataset

_COLUMNS = ("fit", "estimator", "unit", "adjacency", "loss", "state")


def _cells(fit: LedgerFit) -> tuple[str, ...]:
    adjacency = fit.adjacency + (" (twice)" if fit.factor > 1 else "")
    state = fit.state + (" SEEDED" if fit.seeded else "")
    unit = fit.unit if fit.part is None else f"{fit.unit} in {fit.part.key}={fit.part.name}"
    return fit.estimator, unit, adjacency, as_text(fit.losses), state


def _table(balance: Balance) -> list[tuple[str, ...]]:
    rows = enumerate(map(_cells, balance.entries.values()), 1)
    return [_COLUMNS, *((str(i), *cells) for i, cells in rows)]


def summary(balance: Balance, delta: float | None = None) -> str:
    """Say what was spent, at a delta, and what is left."""
    spent = balance.spent(delta)
    others = (("mu", spent.mu), ("rho", spent.rho))
    known = ", ".join(f"{name}={value:.4g}" for name, value in others if value is not None)
    rules = sorted({fit.part.key for fit in balance.entries.values() if fit.part is not None})
    parts = f" One {spent.unit} is in one part of {', '.join(rules)} at most: the dearest counts."
    return (
        f"Budget {balance.terms.cap.text()}; spent {as_text(spent.losses)}: {spent.sentence()}"
        + (f" In other measures: {known}." if known else "")
        + (parts if rules else "")
        + f" Left for one more fit: epsilon={balance.remaining():.4g}."
    )


def as_lines(balance: Balance, more: str = "", delta: float | None = None) -> list[str]:
    """Return the fits and the summary as aligned text."""
    return [*aligned(_table(balance)), summary(balance, delta) + more]


def as_html(balance: Balance, more: str = "", delta: float | None = None) -> str:
    """Return the fits and the summary as HTML."""
    text = html.escape(summary(balance, delta) + more)
    return f"{_html_table(_table(balance))}<p>{text}</p>"


def _html_table(table: Iterable[Sequence[str]]) -> str:
    cells = [[f"<td>{html.escape(cell)}</td>" for cell in row] for row in table]
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f"<table>{rows}</table>"


def changes(datasets: Iterable[Dataset]) -> list[dict[str, Any]]:
    """Return every change of a fit as a record, oldest first."""
    records = []
    for dataset in datasets:
        for change in dataset.changes:
            fit = change.fit
            cells = dict(zip(_COLUMNS[1:], _cells(fit), strict=True)) if fit else {}
            state = {"state": "took nothing"} if fit is None else {}
            row = {"at": change.at, "dataset": dataset.name, "fit": change.number}
            records.append(dict.fromkeys(_COLUMNS[1:], "") | row | cells | state)
    columns = ("at", "dataset", *_COLUMNS)
    return [{name: row[name] for name in columns} for row in sorted(records, key=_when)]


def _when(record: dict[str, Any]) -> str:
    return str(record["at"])

"""Ledger files of an organisation, from the command line: ``python -m skdp.ledger --help``.

Examples
--------
.. code-block:: bash

    python -m skdp.ledger add budgets.ledger patients --epsilon 4 --delta 1e-6 --unit group
    python -m skdp.ledger show budgets.ledger
    python -m skdp.ledger history budgets.ledger --dataset patients
    python -m skdp.ledger export budgets.ledger > budgets.json
    python -m skdp.ledger verify budgets.json --hash 5f1c...
"""

from __future__ import annotations

import argparse
import html
import os
import sys
from collections.abc import Sequence

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.receipts import aligned
from skdp.privacy.ledger.balances import BUDGETS
from skdp.privacy.ledger.books import Dataset, Registry, read_registry
from skdp.privacy.ledger.ledger import PrivacyLedger, as_html, as_lines, changes
from skdp.units import ADJACENCIES, UNITS

_WHICH = "epsilon and delta, or mu (Gaussian DP), or rho (zCDP)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, default=None
        Those of the program.

    Returns
    -------
    int
        0, or 1 for a file that is not whole, or a dataset that is not there.
    """
    given = _parser().parse_args(arguments)
    try:
        sys.stdout.write(given.run(given) + "\n")
    except (PrivacyError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skdp.ledger",
        description="Budgets of an organisation's datasets, in a file: show, add, check them.",
        epilog="python -m skdp.ledger add FILE patients --epsilon 4 --delta 1e-6 --unit group",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name, run, text):
        added = commands.add_parser(name, help=text)
        added.add_argument("file")
        added.set_defaults(run=run)
        return added

    show = command("show", _show, "what each dataset has spent, and what is left")
    show.add_argument("--html", action="store_true", help="as HTML")
    history = command("history", _history, "every change, with its time")
    show.add_argument("--delta", type=float, help="for the epsilon that was spent")
    for each in (show, history):
        each.add_argument("--dataset", help="this one only")
    add = command("add", _add, "add a dataset with a budget of its own")
    add.add_argument("dataset")
    for name in BUDGETS:
        add.add_argument(f"--{name}", type=float, help="part of a budget, or one: " + _WHICH)
    add.add_argument("--unit", choices=UNITS)
    add.add_argument("--adjacency", choices=ADJACENCIES)
    command("export", lambda given: read_registry(given.file).export(), "everything, as JSON")
    verify = command(
        "verify", _verify, "whether a file, or what was exported, is as it was written"
    )
    verify.add_argument("--hash", help="a hash that was noted before, which must be there")
    return parser


def _chosen(given: argparse.Namespace) -> tuple[Registry, list[Dataset]]:
    if not os.path.exists(given.file):
        raise ValueError(f"There is no file {given.file!r}: 'add' makes one.")
    registry = read_registry(given.file)
    if given.dataset is None:
        return registry, list(registry.datasets.values())
    return registry, [registry.choose(given.dataset)]


def _show(given: argparse.Namespace) -> str:
    registry, datasets = _chosen(given)
    if given.html:
        return "\n".join(
            f"<h2>{html.escape(d.name)}</h2>{as_html(d.now, delta=given.delta)}" for d in datasets
        )
    parts = ["\n".join([f"[{d.name}]", *as_lines(d.now, delta=given.delta)]) for d in datasets]
    return "\n\n".join([*parts, f"{len(registry.lines)} lines, hash {registry.file_hash}"])


def _history(given: argparse.Namespace) -> str:
    records = changes(_chosen(given)[1])
    header = [tuple(records[0])] if records else [("no fits yet",)]
    return "\n".join(aligned([*header, *(tuple(map(str, row.values())) for row in records)]))


def _add(given: argparse.Namespace) -> str:
    terms = {name: getattr(given, name) for name in (*BUDGETS, "unit", "adjacency")}
    ledger = PrivacyLedger(**terms, path=given.file, dataset=given.dataset)
    return f"[{given.dataset}]\n{ledger.report()}"


def _verify(given: argparse.Namespace) -> str:
    registry = read_registry(given.file)
    if given.hash is not None and given.hash not in registry.hashes:
        raise PrivacyError(
            f"{given.file} does not contain the hash {given.hash}: it is an older copy, its last "
            "lines were removed, or it was written anew."
        )
    return f"{len(registry.lines)} lines are as they were written. Hash: {registry.file_hash}"


if __name__ == "__main__":
    sys.exit(main())

"""Tables that benchmarks make: printed, collected, written as JSON and as Markdown.

A benchmark module takes part in ``python -m benchmarks`` by a function ``tables(full)`` that yields
`Table` objects: quick ones (a minute in all) with ``full=False``, everything with ``full=True``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

_COLLECTORS: list[list[Table]] = []
_QUICK = False


@dataclass
class Table:
    """One table, or text that a script printed.

    Attributes
    ----------
    title : str
        What was measured, on what data, how often.
    head : list of str
        Names of the columns.
    rows : list of lists
        Cells: numbers or texts.
    notes : list of str
        Sentences below the table.
    text : str
        Published text, where there are no rows.
    data : dict
        Numbers for pictures; written to JSON alone.
    """

    title: str
    head: list[Any] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts."""
        return asdict(self)

    def as_text(self) -> str:
        """Return aligned columns."""
        lines = [[_cell(x) for x in row] for row in ([self.head, *self.rows] if self.rows else [])]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        body = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *body, *self.text.splitlines(), *self.notes])

    def as_markdown(self) -> str:
        """Return a Markdown table, or a block of text."""
        parts = [f"**{self.title}**", ""]
        if self.rows:
            parts.append(_pipes(self.head))
            parts.append("|" + "---|" * len(self.head))
            parts += [_pipes(row) for row in self.rows] + [""]
        if self.text:
            parts += ["```text", self.text.strip("\n"), "```", ""]
        return "\n".join([*parts, *(note + "\n" for note in self.notes)])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pipes(row: list[Any]) -> str:
    return "| " + " | ".join(_cell(x).replace("|", "\\|") for x in row) + " |"


def show(title: str, head: list[Any], rows: list[list[Any]], *notes: str, **data: Any) -> Table:
    """Print a table, and hand it to whoever collects."""
    table = Table(title, list(head), [list(row) for row in rows], list(notes), data=data)
    for collector in _COLLECTORS:
        collector.append(table)
    print("\n" + table.as_text(), flush=True)
    return table


def shown(function: Callable[[], Any]) -> list[Table]:
    """Run a function; return the tables that it shows."""
    collected: list[Table] = []
    _COLLECTORS.append(collected)
    try:
        function()
    finally:
        _COLLECTORS.remove(collected)
    return collected


def printed(title: str, function: Callable[[], Any], *notes: str) -> Iterator[Table]:
    """Run a function that prints; yield its text as one table."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        function()
    print(stream.getvalue(), flush=True)
    yield Table(title, text=stream.getvalue().strip("\n"), notes=list(notes))


def sized(full: Any, quick: Any) -> Any:
    """Return what a full run has, or a quick one."""
    return quick if _QUICK else full


def tables_of(sections: Iterable[Callable[[], Any]], full: bool) -> Iterator[Table]:
    """Yield the tables that some functions show in a full or in a quick run."""
    global _QUICK
    _QUICK = not full
    for section in sections:
        yield from shown(section)


def run_sections(doc: str, functions: Iterable[Callable[[], Any]]) -> None:
    """Run the functions named on the command line, or all; ``--quick`` makes a quick run."""
    from threadpoolctl import threadpool_limits

    sections = {function.__name__: function for function in functions}
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data and fewer fits")
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(sections))
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(sections):
        parser.error(f"unknown sections {sorted(unknown)}; there are {', '.join(sections)}")
    chosen = [sections[name] for name in arguments.sections or sections]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(tables_of(chosen, not arguments.quick))

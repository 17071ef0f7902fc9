"""Tables as text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of equal length as lines whose columns stand below each other."""
    table = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows as an HTML table; without a head the first column is one."""
    lines = [_html_row(head, "th", "th")] if head else []
    lines += [_html_row(row, "td" if head else "th", "td") for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _html_row(cells: Sequence[str], first: str, other: str) -> str:
    left = " style='text-align:left'"
    tags = [first, *[other] * (len(cells) - 1)]
    parts = (f"<{t}{left}>{html.escape(c)}</{t}>" for t, c in zip(tags, cells, strict=True))
    return f"<tr>{''.join(parts)}</tr>"

"""Receipts: objects that state what a fit spent, for people and for programs."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, as_number, as_text, compose
from skdp.units import unit_named

# Tables as text.


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines of text with aligned columns."""
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


def to_dp_event(losses: Iterable[tuple[str, Any]]) -> Any:
    """Return losses as an event of ``dp_accounting`` (optional extra ``skdp[accounting]``).

    LaplaceDpEvent would be optimistic: Laplace noise loses less than the worst pure mechanism.
    Discrete Laplace noise of sensitivity 1 loses exactly +-epsilon, as randomised response
    (whose own event needs REPLACE_ONE, which doubles each mu). Range counts as pure eta. A group
    of sketches becomes UnsupportedDpEvent: no event is as private, and all accountants refuse it.

    Parameters
    ----------
    losses : iterable of Loss

    Returns
    -------
    dp_accounting.ComposedDpEvent
        For a PLDAccountant under ADD_OR_REMOVE_ONE whatever the adjacency of the fit, which
        the losses contain already. Its RDP accountant refuses pure parts.
    """
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise ImportError("dp-accounting is missing; pip install 'skdp[accounting]'.") from error

    def event(loss: Loss) -> Any:
        if loss.kind == "sketch":
            return dp_event.UnsupportedDpEvent()
        if loss.value == math.inf or loss.kind == "delta":  # it has no event for a delta
            return dp_event.NonPrivateDpEvent()
        if loss.kind == "gaussian":
            return dp_event.GaussianDpEvent(1.0 / loss.value)
        return dp_event.DiscreteLaplaceDpEvent(loss.value, 1)

    return dp_event.ComposedDpEvent([event(loss) for loss in compose(losses)])


# Receipts and privacy reports of fits.


def rho_of(losses: Iterable[Loss]) -> float | None:
    """Return a rho for which losses together are rho-zCDP; None where a part has none.

    mu-GDP has Renyi divergences alpha mu^2/2; epsilon-DP at most alpha epsilon^2/2 (Bun and
    Steinke 2016), bounded range eta at most alpha eta^2/8 (Cesar and Rogers 2021).
    """
    rho = {"gaussian": 1 / 2, "pure": 1 / 2, "range": 1 / 8}
    losses = tuple(losses)
    if any(loss.kind not in rho for loss in losses):
        return None
    return math.fsum(rho[loss.kind] * loss.value**2 for loss in losses)


_TRIES = 50


def joint_epsilon(
    price: Callable[[float], float], delta: float, distance: float, start: float = 0.0
) -> float:
    """Return the epsilon at delta of a mechanism whose sampled noise differs from its distribution.

    A total variation of `distance` costs (1 + e^epsilon) distance of delta, which is computed at an
    epsilon that is no smaller than the result.

    Parameters
    ----------
    price : callable
        delta -> epsilon with noise of the law itself.
    delta, distance : float
        In [0, 1).
    start : float, default=0.0
        Where the search for an epsilon to pay at begins.
    """
    above = start
    for _ in range(_TRIES):
        left = delta - (1.0 + math.exp(min(above, 700.0))) * distance
        if left < 0.0 or (left == 0.0 and distance):
            break
        epsilon = price(left)
        if epsilon <= above or not distance or epsilon == math.inf:
            return epsilon
        above = epsilon * (1 + 1e-9)
    return math.inf


class LedgerEntry(NamedTuple):
    """One release: every number in it is public."""

    name: str
    mechanism: str
    sensitivity: float
    noise_scale: float
    loss: Loss


@dataclass(frozen=True, repr=False)
class PrivacySpent:
    """The receipt of one fit.

    Attributes
    ----------
    epsilon, delta : float
        What the fit satisfies.
    losses : tuple of Loss
        What adds up with other receipts (epsilons do not).
    adjacency, unit : str
        What neighbouring data sets differ in.
    seeded : bool
        Whether the noise can be reproduced from a seed: then the fit is not private.
    sampler_tv_distance : float
        Total variation between the sampled noise and its nominal distribution; `epsilon` covers it.
    scope : str
        What the receipt covers, in words.
    """

    epsilon: float
    delta: float
    losses: tuple[Loss, ...]
    adjacency: str
    unit: str
    seeded: bool
    sampler_tv_distance: float = 0.0
    scope: str = "this fit alone"

    @property
    def mu(self) -> float | None:
        """Gaussian-DP parameter, or None unless all parts are Gaussian."""
        if any(loss.kind != "gaussian" for loss in self.losses):
            return None
        return math.sqrt(math.fsum(loss.value**2 for loss in self.losses))

    @property
    def rho(self) -> float | None:
        """Parameter of zero-concentrated DP, or None if it is undefined for a part."""
        return rho_of(self.losses)

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon that goes with another delta.

        Parameters
        ----------
        delta : float
            In [0, 1).

        Returns
        -------
        float
        """
        delta = as_number("delta", delta, high=1.0)
        return joint_epsilon(
            lambda left: accounting.epsilon_from_losses(self.losses, left),
            delta,
            self.sampler_tv_distance,
        )

    def to_dp_event(self) -> Any:
        """Return this receipt as a ``dp_accounting`` event (extra ``skdp[accounting]``)."""
        return to_dp_event(self.losses)

    def statement(self) -> str:
        """Say the guarantee in one sentence."""
        known = unit_named(self.unit).changes
        change = known.get(self.adjacency, f"{self.adjacency} of one {self.unit}")
        if math.isinf(self.epsilon):
            return "NOT PRIVATE: epsilon is infinite, no noise was added."
        guarantee = f"({self.epsilon:.4g}, {self.delta:.3g})-differential privacy"
        return f"{guarantee} for {change}, by {self.scope}."

    def __repr__(self) -> str:
        """Return a short form that fits the 30 characters of scikit-learn's HTML display."""
        flag = "SEEDED " if self.seeded else ""
        unit = f" {self.unit}" if not self.seeded else ""
        return f"{flag}(epsilon={self.epsilon:.3g}, delta={self.delta:.1g}){unit}"

    def __str__(self) -> str:
        """Return the short form and what it is the receipt of: one fit of a search is not all."""
        return f"{self!r}, by {self.scope}"


_MUCH = 20.0  # an epsilon with which one unit may change probabilities by e^20: hardly private


def cautions(epsilon: float, delta: float, unit: str, n_units: int = 0) -> tuple[str, ...]:
    """Return warnings about a weak guarantee (a huge epsilon or delta), from public numbers alone.

    Parameters
    ----------
    epsilon, delta : float
        The promise.
    unit : str
        What it is made to.
    n_units : int, default=0
        How many there are, where that is public; 0 if it is not.
    """
    said = []
    if _MUCH < epsilon < math.inf:
        said.append(
            f"epsilon={epsilon:g} gives almost no protection: a result may be e^{epsilon:g} times "
            f"as likely with one {unit} as without it. Use an epsilon between 0.1 and 10."
        )
    if n_units and delta * n_units >= 1:
        said.append(
            f"delta={delta:g} is too large: publishing one random {unit} of {n_units} would "
            f"satisfy it. Use at most {0.01 / n_units:.1g}."
        )
    return tuple(said)


# The purposes of releases, in the words of the report.
_PURPOSES = {
    "count": "number of units",
    "column_moments": "means and variances",
    "class_score_moments": "means and variances of classes",
    "row_sum": "sum of the rows",
    "column_centered_ranks": "location and scale of columns or targets",
    **dict.fromkeys(("norm_centered_rank", "norm_count_above"), "scale of the rows"),
    "tangent_norm_count_above": "scale of the tangent parts",
    **dict.fromkeys(("target_centered_rank", "target_mean_centered_rank"), "scale of the targets"),
    "target_count_above": "truncation of targets",
    "gradient_norm_centered_rank": "clip norm of the gradients",
    "measurement_gram_norm_centered_rank": "scale of the measurements",
    "gram": "subspace and spectrum",
    **dict.fromkeys(("gram_product", "left_product", "right_product"), "subspace"),
    **dict.fromkeys(("tangent_product", "user_direction_gram", "matrix", "vector"), "subspace"),
    "augmented_gram": "mean and subspace",
    **dict.fromkeys(("full_matrix", "randomized_entries"), "the matrix"),
    **dict.fromkeys(("left_sketch", "right_sketch", "core_sketch"), "the matrix"),
    "class_counts": "rows in each class",
    "score_histogram": "rows in each bin",
    "pooled_regression_moments": "global model and whitening",
    "head_rule_votes": "votes on users' models",
    **dict.fromkeys(("projected_matrix", "rayleigh_quotient", "projected_gram"), "spectrum"),
    "vector_norm": "spectrum",
    "squared_norm_sum": "total variance",
    **dict.fromkeys(("regression_moments", "regression_products"), "regression"),
    "target_sums": "mean of the targets",
    "cut_gain": "truncation of entries",
    "rounding_variance": "weights between the bounds",
    **dict.fromkeys(("item_counts", "item_frequency_sum"), "counts of items or columns"),
    "pairs": "pairs of items or rows",
    **dict.fromkeys(("record_sum", "measurement_covariance_moments"), "mean and covariance of X"),
    **dict.fromkeys(("column_sums", "row_sums"), "means of rows and columns"),
    **dict.fromkeys(("spectral_init_sum", "gradient_sum"), "gradients"),
    "prediction_moments": "scale of the predictions",
    "unused_budget": "not used",
}
_COLUMNS = ("release", "mechanism", "sensitivity", "noise scale", "loss")
_GROUPED = ("purpose", "releases", "budget", "names")
_NOT_COVERED = (
    "Not covered: other fits to the same rows, such as those of clones in a search (search_cost "
    "counts them, a PrivacyLedger limits them).",
    "Not covered: the output of transform and score on private rows, models trained on it, and "
    "pipeline steps fitted before this one.",
)


def _cells(line: LedgerEntry, times: int) -> tuple[str, ...]:
    return (
        line.name if times == 1 else f"{line.name} ({times} times)",
        line.mechanism,
        f"{line.sensitivity:.4g}",
        f"{line.noise_scale:.4g}",
        as_text((line.loss,)),
    )


def _grouped(entries: Sequence[LedgerEntry]) -> list[tuple[str, ...]]:
    """Return one row for each purpose: how many releases, and what part of the budget in rho."""
    whole = rho_of(entry.loss for entry in entries)
    groups: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        groups.setdefault(_PURPOSES.get(entry.name, entry.name), []).append(entry)
    rows: list[tuple[str, ...]] = []
    for purpose, group in groups.items():
        names = ", ".join(dict.fromkeys(entry.name for entry in group))
        part = rho_of(entry.loss for entry in group)
        known = part is not None and whole is not None and 0 < whole < math.inf
        budget = f"{(part or 0.0) / (whole or 1.0):.1%}" if known else ""  # some have no rho
        rows.append((purpose, str(len(group)), budget, names))
    return rows


@dataclass(repr=False, eq=False)
class PrivacyReport:
    """The budget of one fit and its purposes, as text (`str`, `print`) and as HTML (notebooks).

    Releases are grouped by what they are for; `details` lists each of them.
    """

    title: str
    spent: PrivacySpent
    ledger: tuple[LedgerEntry, ...]
    held: str = ""

    def _facts(self) -> list[tuple[str, str]]:
        spent = self.spent
        facts = [("Estimator", self.title), ("Guarantee", spent.statement())]
        if spent.seeded:
            seeded = "not private: anyone who knows the seed can subtract the noise."
            facts.insert(0, ("SEEDED", seeded))
        if self.held:
            facts.insert(0, ("PRIVATE STATE", self.held))
        facts += [("Caution", text) for text in cautions(spent.epsilon, spent.delta, spent.unit)]
        facts.append(("Unit", spent.unit))
        facts.append(("Adjacency", spent.adjacency))
        facts.append(("mu", "none (not only Gaussian)" if spent.mu is None else f"{spent.mu:.6g}"))
        facts.append(("rho", "none" if spent.rho is None else f"{spent.rho:.6g}"))
        return facts

    def _rows(self) -> list[tuple[str, ...]]:
        """One row for each release; equal releases in a row are counted."""
        return [_cells(line, len(list(equal))) for line, equal in groupby(self.ledger)]

    def details(self) -> str:
        """Return every release with its mechanism, sensitivity, noise and loss, as text.

        Returns
        -------
        str
        """
        return "\n".join(aligned([_COLUMNS, *self._rows()]))

    def __str__(self) -> str:
        """Return the report as aligned text."""
        grouped = aligned([_GROUPED, *_grouped(self.ledger)])
        more = "Mechanism, sensitivity and noise of each release: details()."
        return "\n".join([*aligned(self._facts()), *grouped, more, *_NOT_COVERED])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return (
            f"{html_table(self._facts())}{html_table(_grouped(self.ledger), _GROUPED)}"
            f"<details><summary>Each release</summary>{html_table(self._rows(), _COLUMNS)}"
            f"</details><p>{html.escape(' '.join(_NOT_COVERED))}</p>"
        )

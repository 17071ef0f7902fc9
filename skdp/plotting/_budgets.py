"""Display of a budget: what releases cost."""

from __future__ import annotations

import math
from typing import Any

from sklearn.utils.validation import check_is_fitted

from skdp.plotting._released import COLORS, GREY, RED, axes_of, wrapped

# The privacy card as a picture: what the budget was spent on.


_SQUARED = (
    "gaussian",
    "sketch",
)  # a sketch has a random mu, whose mean square counts; other losses add up as they are
_KIND = {
    "gaussian": "Gaussian\n(share of mu²)",
    "sketch": "random sketches\n(share of mean mu²)",
    "pure": "pure\n(share of epsilon)",
    "range": "choices\n(share of range)",
}
_HATCHES = ("", "//", "..", "xx")


class BudgetDisplay:
    """Shares of the budget by release, and the guarantee in one sentence.

    Parameters
    ----------
    shares : dict of dict
        Kind of loss -> name of the release -> its share of that kind; each kind sums to 1.
    sentence : str
        The guarantee.
    seeded : bool, default=False
        Whether the noise can be regenerated from a seed.
    estimator_name : str or None, default=None
        Name for the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    bars_ : dict of str to list of artists
        One bar for each release of a kind.
    flag_ : matplotlib Text or None
        The word SEEDED, if the fit was seeded.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.plotting import BudgetDisplay
    >>> X = np.random.default_rng(0).standard_normal((2000, 6)) * np.geomspace(1, 0.1, 6)
    >>> display = BudgetDisplay.from_estimator(DPPCA(2, clip_norm=3.0).fit(X))
    >>> list(display.shares)
    ['gaussian']
    """

    def __init__(self, shares, sentence, *, seeded=False, estimator_name=None):
        self.shares = shares
        self.sentence = sentence
        self.seeded = seeded
        self.estimator_name = estimator_name

    def plot(self, ax: Any = None) -> Any:
        """Draw one stacked bar for each kind of loss.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : BudgetDisplay
            The display.
        """
        rows = max(1, len(self.shares))
        lines = sum(map(len, self.shares.values()))
        height = max(1.7 + 0.7 * rows, 1.0 + 0.21 * lines)
        self.ax_, self.figure_ = ax, _ = axes_of(ax, (8.0, height))
        self.bars_, number = {}, 0
        for row, (kind, parts) in enumerate(self.shares.items()):
            left, self.bars_[kind] = 0.0, []
            for name, share in parts.items():
                (bar,) = ax.barh(
                    row, share, left=left, height=0.6, color=COLORS[number % 7],
                    hatch=_HATCHES[number // 7 % 4], edgecolor="white",
                    label=f"{name} {share:.1%}",
                )  # fmt: skip
                self.bars_[kind].append(bar)
                left += share
                number += 1
        ax.set_yticks(range(len(self.shares)), [_KIND.get(kind, kind) for kind in self.shares])
        ax.set_ylim(-0.5, rows - 0.5)
        ax.set_xlim(0, 1)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
        ax.set_xlabel("share of the budget (%)")
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        name = f"{self.estimator_name}: " if self.estimator_name else ""
        ax.set_title(wrapped(name + self.sentence, 72), fontsize="medium", loc="left")
        if number:
            ax.legend(
                loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False,
                handlelength=1.2,
            )  # fmt: skip
        else:
            text = "nothing was spent: no noise, no privacy"
            ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", color=GREY)
        self.flag_ = None
        if self.seeded:
            self.flag_ = ax.text(
                1.0, 1.02, "SEEDED: not private", transform=ax.transAxes, ha="right", va="bottom",
                color="white", fontweight="bold", fontsize="small",
                bbox={"facecolor": RED, "edgecolor": "none", "boxstyle": "round,pad=0.3"},
            )  # fmt: skip
            ax.set_title(ax.get_title(loc="left"), fontsize="medium", loc="left", pad=24)
        return self

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Any:
        """Draw the receipt of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `privacy_spent_` and `releases_`.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : BudgetDisplay
            The display.
        """
        check_is_fitted(estimator, "releases_")
        spent = estimator.privacy_spent_
        name = type(estimator).__name__
        shares = shares_of(estimator.releases_)
        return cls(shares, spent.statement(), seeded=spent.seeded, estimator_name=name).plot(ax)


def shares_of(ledger):
    """Return shares by kind of loss and by name, in the order of the ledger."""
    weights = {}
    for line in ledger:
        value = float(line.loss.value)
        weight = value**2 if line.loss.kind in _SQUARED else value
        if math.isfinite(weight) and weight > 0:
            parts = weights.setdefault(line.loss.kind, {})
            parts[line.name] = parts.get(line.name, 0.0) + weight
    return {
        kind: {name: weight / sum(parts.values()) for name, weight in parts.items()}
        for kind, parts in weights.items()
    }

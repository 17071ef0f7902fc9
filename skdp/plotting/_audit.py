"""Audits: what was reached of what is claimed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skdp.plotting._released import COLORS, GREY, RED, axes_of


class AuditDisplay:
    """Realised against claimed privacy parameters; points above the diagonal break the claim.

    Parameters
    ----------
    claimed, realised : array-like of shape (n_points,)
        Privacy parameters: what the ledger charges, and what the audit reached or bounded below.
    labels : list of str
        What each point is.
    quantity : str, default="mu"
        Name of the parameter.
    title : str, default="audit"
        Title of the picture.

    Attributes
    ----------
    broken : list of str
        Labels of the points above the diagonal.
    ax_ : matplotlib Axes
        Axes of the picture.
    figure_ : matplotlib Figure
        Figure of the picture.
    points_ : dict of str to artist
        Label -> its points.
    diagonal_ : artist
        The claim.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.plotting import AuditDisplay
    >>> pair = np.zeros((40, 3)), np.eye(41, 3, k=-40)  # a row more, as long as the clip norm
    >>> display = AuditDisplay.from_estimator(DPPCA(1, clip_norm=1.0, center="none"), pair)
    >>> display.broken
    []
    """

    def __init__(self, claimed, realised, labels, *, quantity="mu", title="audit"):
        self.claimed = np.asarray(claimed, dtype=np.float64)
        self.realised = np.asarray(realised, dtype=np.float64)
        self.labels = list(labels)
        self.quantity = quantity
        self.title = title

    @property
    def broken(self) -> Any:
        """Labels of the points that exceed the claim."""
        over = self.realised > self.claimed * (1 + 1e-9)
        return sorted({label for label, bad in zip(self.labels, over, strict=True) if bad})

    def plot(self, ax: Any = None) -> Any:
        """Draw the points and the diagonal.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : AuditDisplay
            The display.
        """
        self.ax_, self.figure_ = ax, _ = axes_of(ax, (5.6, 5.0))
        finite = [*self.claimed[np.isfinite(self.claimed)], *self.realised]
        top = 1.12 * max(finite, default=1.0) or 1.0
        (self.diagonal_,) = ax.plot([0, top], [0, top], color=GREY, linestyle="--", label="claim")
        ax.fill_between([0, top], [0, top], top, color=RED, alpha=0.12, linewidth=0)
        ax.text(0.03 * top, 0.93 * top, "less private than claimed", color=RED, fontsize="small")
        self.points_ = {}
        for number, label in enumerate(dict.fromkeys(self.labels)):
            mine = [i for i, each in enumerate(self.labels) if each == label]
            self.points_[label] = ax.scatter(
                self.claimed[mine], self.realised[mine], s=55, zorder=3, alpha=0.85,
                color=COLORS[number % 6], marker="osD^vP"[number // 6 % 6], label=label,
            )  # fmt: skip
        ax.set_xlim(0, top)
        ax.set_ylim(-0.03 * top, top)  # a bound of 0 is seen
        ax.set_xlabel(f"claimed {self.quantity} (privacy parameter)")
        ax.set_ylabel(f"realised {self.quantity} (at least)")
        ax.set_title(self.title)
        ax.legend(fontsize="small", loc="right")
        return self

    @classmethod
    def from_audit(cls, report: Any, *, ax: Any = None) -> Any:
        """Draw the result of an audit of `skdp.testing`.

        Parameters
        ----------
        report : TranscriptReport, AuditReport or SensitivityReport
            What `transcript_audit`, `audit` or `check_sensitivity` returned.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : AuditDisplay
            The display.
        """
        if hasattr(report, "steps"):
            display = cls(*_steps(report), title="transcript audit: one pair of neighbours")
        elif hasattr(report, "gaussian_bound"):
            title = f"audit: {report.n_runs} runs, confidence {report.confidence:g}"
            display = cls(*_bounds(report), quantity="mu or epsilon", title=title)
        elif hasattr(report, "ratios"):
            ratios = report.ratios
            labels = [f"{report.name}, {norm}" for norm in ratios]
            display = cls(
                [1.0] * len(ratios), list(ratios.values()), labels,
                quantity="change (share of the bound)",
                title=f"sensitivity: {report.n_pairs} pairs tried",
            )  # fmt: skip
        else:
            raise TypeError(
                "from_audit takes the result of transcript_audit, audit or check_sensitivity of "
                f"skdp.testing. Got {type(report).__name__}."
            )
        return display.plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, pair: Any, *, ax: Any = None) -> Any:
        """Audit an estimator on a pair of neighbours (synthetic data) and draw the result.

        Parameters
        ----------
        estimator : estimator
            Not fitted.
        pair : tuple
            Two neighbouring data sets, arrays or `skdp.testing.FitData`.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        display : AuditDisplay
            The display.
        """
        from skdp.testing import transcript_audit

        report = transcript_audit(estimator, pair)
        display = cls.from_audit(report, ax=ax)
        display.title = f"{type(estimator).__name__}: {display.title}"
        display.ax_.set_title(display.title)
        return display


def _steps(report):
    """One point for each release, and one for all Gaussian ones together."""
    steps = [step for step in report.steps if math.isfinite(step.claimed)]
    claimed, realised = [s.claimed for s in steps], [s.realised for s in steps]
    labels = [s.name if s.kind == "gaussian" else f"{s.name} ({s.kind})" for s in steps]
    if any(step.kind == "gaussian" for step in steps):
        claimed.append(report.claimed_mu)
        realised.append(report.realised_mu)
        labels.append("all together")
    return claimed, realised, labels


def _bounds(report):
    """Return the lower bounds next to their claims."""
    points = [(report.claimed_epsilon, report.epsilon_bound, "epsilon, any scores")]
    if not math.isnan(report.claimed_mu):
        points += [
            (report.claimed_mu, report.gaussian_bound, "mu, Gaussian scores"),
            (report.claimed_mu, report.distribution_free_bound, "mu, any scores"),
        ]
    return tuple(map(list, zip(*points, strict=True)))

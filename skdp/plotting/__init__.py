"""Pictures of what was released, what it cost, and what a budget buys, as scikit-learn's Displays.

Each display is made by ``from_estimator`` or by ``from_`` something else, keeps its numbers as
attributes, and is drawn again by ``plot(ax=None)``, which sets ``ax_`` and ``figure_``. Needs
matplotlib (``pip install skdp[plot]``). `ScoreDisplay`, `SpectrumDisplay` and `BudgetDisplay` show
released values alone; `UtilityCurveDisplay` measures on data that must be public.
"""

from skdp.plotting._audit import AuditDisplay
from skdp.plotting._budgets import BudgetDisplay, UtilityCurveDisplay
from skdp.plotting._released import ScoreDisplay, SpectrumDisplay

__all__ = [
    "AuditDisplay",
    "BudgetDisplay",
    "ScoreDisplay",
    "SpectrumDisplay",
    "UtilityCurveDisplay",
]

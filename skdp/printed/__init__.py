"""Algorithms as their papers print them, to compare with: same gate, same receipts.

Where the rest of the package does better, the printed version stays runnable here. Each pays for
its releases with sensitivities that are proved, so its receipt holds; ``calibration="printed"``
takes the papers' own constants where these protect at least as much as they say. What the papers
print and what is not private is left out: `docs/from_the_papers.md` says what and why.
"""

from skdp.printed._factorizer import PrintedFactorizer
from skdp.printed._personalization import PrintedPersonalization
from skdp.printed._power import PrintedDeflation, PrintedPowerMethod

__all__ = ["PrintedDeflation", "PrintedFactorizer", "PrintedPersonalization", "PrintedPowerMethod"]

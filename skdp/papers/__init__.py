"""The algorithms as published, one module a paper: same gate, same receipts.

Where the rest of the package does better, the printed version stays runnable here. Each pays for
its releases with sensitivities that are proved, so its receipt holds; ``calibration="printed"``
takes the papers' own constants where these protect at least as much as they say. What the papers
print and what is not private is left out: `docs/from_the_papers.md` says what and why.
"""

from skdp.papers._hardt_roth_2013 import PowerDeflation
from skdp.papers._jain_2021 import PersonalizedRegression
from skdp.papers._nicolas_2024 import PowerMethod
from skdp.papers._upadhyay_2018 import SketchFactorizer

__all__ = ["PowerDeflation", "SketchFactorizer", "PersonalizedRegression", "PowerMethod"]

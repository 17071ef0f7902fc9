"""The algorithms as published, one module a paper: same gate, same receipts.

They are here for comparisons; the other estimators of the package are more accurate. All use proved
sensitivities, so their receipts hold. ``calibration="printed"`` uses the constants of the paper,
and raises an error where these protect less than stated. Algorithms of the papers that are not
private are omitted: see `docs/from_the_papers.md`.
"""

from skdp.papers._hardt_roth_2013 import PowerDeflation
from skdp.papers._jain_2021 import PersonalizedRegression
from skdp.papers._nicolas_2024 import PowerMethod
from skdp.papers._upadhyay_2018 import SketchFactorizer

__all__ = ["PowerDeflation", "SketchFactorizer", "PersonalizedRegression", "PowerMethod"]

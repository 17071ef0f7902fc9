"""What tests ask of the estimators of this package: data, neighbours, pairs, checks, calibration.

Importing it registers the data, neighbours and worst-case pairs of every privacy unit.
"""

from tools import data as data
from tools import neighbours as neighbours
from tools import pairs as pairs

"""What a person counts for, and the row map where the unit is a person.

Notation: a person has m rows and the weight b <= 1, C bounds the root mean square of the rows'
lengths. Rows count sqrt(b/m) each: their squared lengths sum to at most b C^2. Laid flat a person
is one long row, so that the row map and its exact check serve persons too: integers depend on the
person's rows alone, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import scale_rows
from skdp.data.blocks import Block
from skdp.data.integer_rows import row_map, row_norms
from skdp.data.persons import Persons

FloatArray = NDArray[np.float64]
FINE = 2.0**-24  # unit of a person in sums and projections, in units of the bound of its length


@dataclass(frozen=True)
class PersonWeight:
    """What a person of m rows counts for: 1, or its rows up to `most` of them, over `most`.

    Attributes
    ----------
    most : float or None
        None: 1 whatever m is. Infinite (where nothing is protected): each row counts 1.
    """

    most: float | None = None

    def __call__(self, m: int) -> float:
        """Return the weight, at most 1."""
        if self.most is None:
            return 1.0
        return min(1.0, m / self.most) if math.isfinite(self.most) else float(m)


EQUAL = PersonWeight()


@dataclass(frozen=True)
class PersonMap:
    """Rows of persons in units, those of one with squared lengths of sum (length/unit)^2 at most.

    Integers, checked exactly; floats at unit 0.
    """

    length: float
    unit: float
    weight: PersonWeight

    def __call__(self, batch: Persons) -> Block:
        """Return the weighted rows of a batch."""
        root = math.sqrt(batch.each)
        each = math.sqrt(self.weight(batch.each)) / root
        flat = row_map(self.length * root, self.unit / each, reuse=False)(batch.flat())
        if self.unit == 0.0:
            flat = scale_rows(flat, np.full(flat.shape[0], each))
        return batch.rows_of(flat)


def root_mean_squares(batch: Persons) -> FloatArray:
    """Return the root mean square of the lengths of each person's rows, from that person alone."""
    return np.asarray(row_norms(batch.flat()) / math.sqrt(batch.each))

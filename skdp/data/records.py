"""Records (x, y): rows with their targets as numbers, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import RowSource, row_source
from skdp.data.zipped import CHECKED, ZippedRows

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RecordForm:
    """How the targets of a place are read; public, so that it can travel.

    Attributes
    ----------
    encode : callable
        From targets to float64 columns, each row from its target alone.
    n_targets : int
        Number of columns.
    """

    encode: Callable[[Any], FloatArray]
    n_targets: int

    def __call__(self, rows: RowSource, y: Any) -> RowSource:
        """Return the records of one place."""
        columns = self.columns(y)
        return ZippedRows(rows, {"y": columns, CHECKED: np.zeros(len(columns), np.int8)})

    def alone(self, y: Any) -> RowSource:
        """Return the targets of one place as rows."""
        return row_source(self.columns(y))

    def columns(self, y: Any) -> FloatArray:
        """Return the targets of one place as float64 columns."""
        columns = np.asarray(self.encode(y), np.float64)
        if columns.ndim != 2 or columns.shape[1] != self.n_targets:
            raise ValueError("the targets of a block have another shape")
        return columns

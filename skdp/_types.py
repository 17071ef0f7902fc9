"""Types of parameters that estimators share, for those who call them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["ColumnBounds", "Seed", "Split"]

ColumnBounds: TypeAlias = ArrayLike | Mapping[Any, tuple[float, float]]
Seed: TypeAlias = int | np.random.Generator | np.random.RandomState | None
Split: TypeAlias = Mapping[str, float] | str

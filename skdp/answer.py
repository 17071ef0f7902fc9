"""What becomes public: an array, and how much noise is in it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Answer(NamedTuple):
    """A public array and the (public) standard deviation of the noise in it.

    Of a symmetric matrix, the deviation is that of the diagonal.
    """

    value: NDArray[np.float64]
    noise_scale: float

    def plus(self, public: Any) -> Answer:
        """Return the answer with public numbers added to its value."""
        return self._replace(value=self.value + public)


NOTHING: Final = Answer(np.zeros(()), 0.0)  # where nothing is added

"""Computation whose bits depend on nothing but the data: one BLAS thread, and no warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skdp._threads import one_blas_thread

__all__ = ["one_blas_thread", "quietly"]


def quietly(local: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Floating-point trouble of one user is that user's: no warning, in any thread."""

    def run(batch: Any) -> Any:
        with np.errstate(all="ignore"), one_blas_thread():
            return local(batch)

    return run

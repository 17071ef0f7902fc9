"""Computation whose bits depend on nothing but the data: one BLAS thread, and no warnings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController


@cache
def _blas() -> Any:
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """The bits of a product depend on how many threads made it."""
    return _blas().limit(limits=1, user_api="blas")


def quietly(local: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Floating-point trouble of one user is that user's: no warning, in any thread."""

    def run(batch: Any) -> Any:
        with np.errstate(all="ignore"), one_blas_thread():
            return local(batch)

    return run

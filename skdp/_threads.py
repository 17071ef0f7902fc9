"""One BLAS thread for some time: for exact bits, and for what is too small for more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_state: dict[str, Any] = {"lock": threading.Lock(), "held": False}


def _start_anew() -> None:
    """Whoever held it when the process was forked may be a thread that is not there."""
    _state.update(lock=threading.Lock(), held=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


@cache
def _blas() -> Any:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold all BLAS libraries at one thread, unless that is done already.

    Their number of threads belongs to the process. Were each of two that overlap to set it back to
    what it found, it would stay at one; now the first of them gives back what there was.
    """
    with _state["lock"]:
        first, _state["held"] = not _state["held"], True
    if not first:
        yield
        return
    try:
        with _blas().limit(limits=1, user_api="blas"):
            yield
    finally:
        _state["held"] = False

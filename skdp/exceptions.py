"""Warnings and errors of skdp."""

import inspect
import warnings
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

__all__ = [
    "BudgetExceededError",
    "NoSignalWarning",
    "PartialSignalWarning",
    "PrivacyError",
    "PrivacyUnitWarning",
    "PrivacyWarning",
    "UtilityWarning",
]


class UtilityWarning(UserWarning):
    """The result is less useful than was asked for. The privacy guarantee holds as stated."""


class NoSignalWarning(UtilityWarning):
    """The result may contain nothing of the data: noise and chance alone could explain it."""


class PartialSignalWarning(UtilityWarning):
    """Some columns, components, targets or classes contribute nothing but noise."""


class PrivacyWarning(UserWarning):
    """A setting of the caller weakens or voids the stated guarantee."""


class PrivacyUnitWarning(PrivacyWarning):
    """The unit of protection is smaller than the caller may think."""


class PrivacyError(RuntimeError):
    """An operation would break the guarantee; nothing was released by it."""


class BudgetExceededError(PrivacyError):
    """A release asks for more budget than is left; the data were not touched."""


_WITHIN = ("skdp.", "sklearn.", "joblib.")  # packages whose lines a warning does not point to


# What a run of a private search warns of: shown if that run is published, and else private.
HELD: ContextVar[list[tuple[str, type[Warning]]] | None] = ContextVar("skdp_held", default=None)


def unheard(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function whose warnings no search may publish, such as one for each private row."""
    context = copy_context()  # nothing has to be restored, whatever interrupts the call
    context.run(HELD.set, [])
    return context.run(function, *given)


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn, and point at the line of the caller's own code, however deep a fit is below it."""
    if (held := HELD.get()) is not None:
        held.append((message, category))
        return
    # This does what `skip_file_prefixes` does from Python 3.12 on. The stack decides only where the
    # warning points: no charge, release or refusal depends on it.
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith(_WITHIN):
        level, frame = level + 1, frame.f_back
    del frame  # it would keep the variables of the caller alive
    warnings.warn(message, category, stacklevel=level)

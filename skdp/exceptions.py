"""Warnings and errors of skdp."""

import sys
import warnings

__all__ = ["BudgetExceededError", "PrivacyError", "PrivacyUnitWarning", "PrivacyWarning"]


class PrivacyWarning(UserWarning):
    """Something weakens or voids the stated guarantee, and the caller asked for it."""


class PrivacyUnitWarning(PrivacyWarning):
    """The unit of protection is smaller than the caller may think."""


class PrivacyError(RuntimeError):
    """An operation would break the guarantee; nothing was released by it."""


class BudgetExceededError(PrivacyError):
    """A release asks for more budget than is left; the data were not touched."""


_WITHIN = ("skdp", "sklearn", "joblib")  # packages whose lines say nothing to who called them


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn, and point at the line of the caller's own code, however deep a fit is below it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _WITHIN:
        frame = frame.f_back
    place = frame.f_globals
    registry = place.setdefault("__warningregistry__", {})
    name = place.get("__name__", "<string>")
    file = frame.f_code.co_filename
    warnings.warn_explicit(message, category, file, frame.f_lineno, name, registry)


def _package(place: dict[str, object]) -> str:
    return str(place.get("__name__", "")).partition(".")[0]

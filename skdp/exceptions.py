"""Warnings and errors of skdp."""

__all__ = ["BudgetExceededError", "PrivacyError", "PrivacyUnitWarning", "PrivacyWarning"]


class PrivacyWarning(UserWarning):
    """Something weakens or voids the stated guarantee, and the caller asked for it."""


class PrivacyUnitWarning(PrivacyWarning):
    """The unit of protection is smaller than the caller may think."""


class PrivacyError(RuntimeError):
    """An operation would break the guarantee; nothing was released by it."""


class BudgetExceededError(PrivacyError):
    """A release asks for more budget than is left; the data were not touched."""

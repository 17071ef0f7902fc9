"""Errors of secure aggregation."""

from skdp.exceptions import PrivacyError


class MessageRefused(PrivacyError):
    """A message is malformed, altered, out of turn or already answered. Nothing came of it."""


class AggregationAborted(PrivacyError):
    """Too many clients dropped out; no sum came out of this step.

    Attributes
    ----------
    opened : bool
        Whether clients were already asked to unmask. Then the step counts as released: what it
        cost stays spent, and clients do not answer it again. If False, no sum could be opened.
    """

    def __init__(self, message: str, *, opened: bool) -> None:
        super().__init__(message)
        self.opened = opened

    def __reduce__(self) -> tuple[object, ...]:
        return _aborted, (str(self), self.opened)


def _aborted(message: str, opened: bool) -> AggregationAborted:
    return AggregationAborted(message, opened=opened)

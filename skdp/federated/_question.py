"""A request, and the step of the secure sum in which it is asked."""

from __future__ import annotations


class Question(bytes):
    """A request as `AggregationClient` hands it to its callback.

    The bytes are the server's. The rest comes from the client's own half of the secure sum, which
    knows what it has answered: so a second answer within one step is one to an attempt that this
    client never helped to unmask, and in any other step it would be a second release.

    Parameters
    ----------
    request : bytes
        The public request of the server.
    step : bytes
        Names the step; the same in each of its attempts, and in no other step of any run.
    counts : tuple of int
        Clients, colluders and drop-outs of the secure sum: how much noise it needs.
    size : int
        How many words the secure sum adds.
    """

    step: bytes
    counts: tuple[int, int, int]
    size: int

    def __new__(
        cls, request: bytes, step: bytes, counts: tuple[int, int, int], size: int
    ) -> Question:
        """Attach the step to the request."""
        self = super().__new__(cls, request)
        self.step = step
        self.counts = counts
        self.size = size
        return self

"""What all parties of a secure sum agree on beforehand, and the errors that end one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

from skdp._validation import check_int
from skdp.exceptions import PrivacyError, PrivacyWarning, warn_caller
from skdp.privacy.noise import integers as noise

# Errors of secure aggregation.


class InvalidMessageError(PrivacyError):
    """A message is malformed, altered, out of turn or already answered. It had no effect."""


class AggregationAbortedError(PrivacyError):
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
        return partial(type(self), str(self), opened=self.opened), ()


_FEWEST_NEIGHBOURS: Final = 20


@dataclass(frozen=True)
class AggregationConfig:
    """Numbers of clients, colluders and drop-outs of a secure sum, and who masks with whom.

    Every client holds the same configuration and refuses a server that announces another one.

    Parameters
    ----------
    n_clients : int
        Clients of each step; an absent client counts as dropped out. Public.
    n_colluders : int, default=1
        T: clients that may share all they know with each other and with the server. A curious
        client is one of them: it knows its own noise. With 0, budgets hold against the server and
        those who see the result; against another client mu is `against_clients` times as large,
        and a PrivacyWarning says so.
    n_dropouts : int, default=0
        F: clients that may drop out of a step. Beyond F the step is aborted and opens nothing:
        the noise of the rest would be too small.

    Examples
    --------
    >>> from skdp.federated import AggregationConfig
    >>> config = AggregationConfig(n_clients=100, n_colluders=2, n_dropouts=10)
    >>> config.degree, config.shares_needed, config.n_honest
    (24, 14, 88)
    """

    n_clients: int
    n_colluders: int = 1
    n_dropouts: int = 0

    def __post_init__(self) -> None:
        """Check that a sum hides the single contributions."""
        for name, low in (("n_clients", 2), ("n_colluders", 0), ("n_dropouts", 0)):
            check_int(self, name, low)  # type: ignore[no-untyped-call]
        if self.n_honest < 2:
            raise ValueError(
                "n_clients must be at least n_colluders + n_dropouts + 2, so that a sum hides "
                f"whose contribution is whose. Got {self.n_clients} clients, {self.n_colluders} "
                f"colluders and {self.n_dropouts} drop-outs. With two clients take n_colluders=0."
            )
        if self.n_colluders == 0:
            warn_caller(
                "n_colluders=0: the stated budget holds against outsiders, not against a client, "
                "who knows its own part of the noise: for it mu is "
                f"{self.against_clients:.3g} times as large. Use n_colluders=1, which needs "
                f"{self.n_dropouts + 3} clients or more.",
                PrivacyWarning,
            )

    @property
    def degree(self) -> int:
        """Number of neighbours of each client: k = T + 2F + 1, at least 20, even (or all others).

        A circulant graph of degree k stays connected without any k - 1 clients, so
        k >= T + F + 1 leaves the honest survivors connected: their masks hide all partial sums.
        """
        wanted = max(_FEWEST_NEIGHBOURS, self.n_colluders + 2 * self.n_dropouts + 1)
        return min(wanted + wanted % 2, int(self.n_clients) - 1)

    @property
    def shares_needed(self) -> int:
        """Number of neighbours whose shares unmask a client: k - F.

        More than T, which keeps colluders from unmasking alone, and as many as the survivors have.
        """
        return self.degree - int(self.n_dropouts)

    @property
    def fewest_survivors(self) -> int:
        """Number of contributions below which nothing is opened."""
        return self.n_clients - self.n_dropouts

    @property
    def n_honest(self) -> int:
        """Contributions of every opened sum whose noise no attacker knows: s - T - F."""
        return self.n_clients - self.n_colluders - self.n_dropouts

    @property
    def counts(self) -> tuple[int, int, int]:
        """Clients, colluders and drop-outs, which determine the noise."""
        return int(self.n_clients), int(self.n_colluders), int(self.n_dropouts)

    @property
    def effective_sigma(self) -> float:
        """Standard deviation, in steps, of the sum of the honest parts, a rounded Gaussian."""
        return math.sqrt(self.n_honest * noise.PART_SIGMA_INT**2 - 1 / 12)

    @property
    def excess(self) -> float:
        """Standard deviation of the noise of all clients, relative to that of the honest ones."""
        return math.sqrt(self.n_clients / self.n_honest)

    @property
    def draws(self) -> int:
        """Cost in delta of one coordinate, as a number of draws of the central sampler, rounded up.

        The draws of all clients are charged, though those of colluders protect nobody. Adding parts
        costs exp(-4e14) each, which is 0 in floats.
        """
        drawn = self.n_clients * noise.sampler_error(noise.PART_LEVELS)
        rounded = noise.rounding_error(math.sqrt(self.n_honest) * noise.PART_SIGMA_INT)
        return math.ceil((drawn + rounded) / noise.DELTA_PER_DRAW)

    @property
    def against_clients(self) -> float:
        """Factor of mu against one curious client, who knows its own part of the noise.

        1 if T >= 1, because the noise is then sized for it. With T = 0, h - 1 of the h parts that
        make up the noise remain: mu grows by sqrt(h / (h - 1)), 1.41 for two clients.
        """
        known = 0 if self.n_colluders else 1
        return math.sqrt(self.n_honest / (self.n_honest - known))

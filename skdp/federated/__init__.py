"""Decentralised fits: clients that keep their rows, noise in shares, secure sums."""

from skdp.federated.power_method import FederatedPowerMethod, PowerMethodClient

__all__ = ["FederatedPowerMethod", "PowerMethodClient"]

"""Fits over clients that never pool their rows: secure sums, and their messages."""

from skdp.federated._clients import StateSum
from skdp.federated._crypto import Ed25519Identity, Identity
from skdp.federated._messages import LocalTransport
from skdp.federated.aggregation import (
    AggregationClient,
    AggregationResult,
    AggregationServer,
    Aggregator,
    SecureAggregator,
    Transport,
    UnmaskedAggregator,
    simulated_aggregator,
)
from skdp.federated.config import AggregationAbortedError, AggregationConfig, InvalidMessageError
from skdp.federated.personalized import FederatedRounds, PersonalizedClient
from skdp.federated.power_method import FederatedPowerMethod, PowerMethodClient, RecommenderClient

__all__ = [
    "AggregationAbortedError",
    "AggregationClient",
    "AggregationConfig",
    "AggregationResult",
    "AggregationServer",
    "Aggregator",
    "Ed25519Identity",
    "FederatedPowerMethod",
    "FederatedRounds",
    "Identity",
    "LocalTransport",
    "InvalidMessageError",
    "PersonalizedClient",
    "UnmaskedAggregator",
    "PowerMethodClient",
    "RecommenderClient",
    "SecureAggregator",
    "StateSum",
    "Transport",
    "simulated_aggregator",
]

"""Fits over clients that never pool their rows: secure sums, and how their messages travel."""

from skdp.federated._crypto import Ed25519Identity, Identity
from skdp.federated._errors import AggregationAborted, MessageRefused
from skdp.federated._states import StateSum
from skdp.federated.aggregation import (
    AggregationResult,
    Aggregator,
    PlainAggregator,
    SecureAggregator,
    Transport,
    simulated_aggregator,
)
from skdp.federated.aggregation_client import AggregationClient
from skdp.federated.aggregation_server import AggregationServer
from skdp.federated.config import AggregationConfig
from skdp.federated.personalized import FederatedRounds, PersonalizedClient
from skdp.federated.power_method import FederatedPowerMethod, PowerMethodClient
from skdp.federated.recommender import RecommenderClient
from skdp.federated.transport_local import LocalTransport
from skdp.federated.transport_socket import SocketTransport, serve_client

__all__ = [
    "AggregationAborted",
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
    "MessageRefused",
    "PersonalizedClient",
    "PlainAggregator",
    "PowerMethodClient",
    "RecommenderClient",
    "SecureAggregator",
    "SocketTransport",
    "StateSum",
    "Transport",
    "serve_client",
    "simulated_aggregator",
]

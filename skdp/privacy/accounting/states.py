"""Losses as plain data, for files and messages."""

from __future__ import annotations

from typing import Any

from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.sketch_laws import SketchMixture


def loss_state(loss: Loss) -> tuple[str, Any]:
    """Return a loss as plain data."""
    if isinstance(loss.value, SketchMixture):
        terms = [[mu, list(degrees)] for mu, degrees in loss.value.terms]
        return loss.kind, {"terms": terms, "part": loss.value.part}
    return loss.kind, loss.value


def loss_from_state(kind: str, value: Any) -> Loss:
    """Undo `loss_state`."""
    if isinstance(value, dict):
        terms = tuple((mu, tuple(degrees)) for mu, degrees in value["terms"])
        value = SketchMixture(terms, value["part"])
    return Loss(kind, value)

"""Synthetic streams of updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class EventStream(NamedTuple):
    """Updates of a matrix: at time t the entry (row, column) grows by delta.

    Attributes
    ----------
    rows, columns : ndarray of shape (n_events,)
        Where.
    deltas : ndarray of shape (n_events,)
        By how much: 1 or -1.
    times : ndarray of shape (n_events,)
        When, in whole steps from 0, in ascending order.
    """

    rows: np.ndarray
    columns: np.ndarray
    deltas: np.ndarray
    times: np.ndarray


def make_event_stream(
    n_events: int = 100_000,
    matrix_shape: Any = (500, 200),
    n_topics: int = 5,
    *,
    n_steps: int = 32,
    deleted: float = 0.1,
    drift: float = 0.5,
    random_state: Any = None,
) -> Any:
    """Events that build a low-rank matrix of counts, some of them taken back later.

    Each topic has its own likely rows and columns. Over the stream the popularity of topics moves
    from one random mix to another.

    Parameters
    ----------
    n_events : int
        Number of events, deletions among them.
    matrix_shape : tuple of int
        Shape of the matrix.
    n_topics : int
        Its rank, noise aside.
    n_steps : int
        Number of time steps, all with about as many events.
    deleted : float
        Share of events that take an earlier one back; below 0.5.
    drift : float
        How far the mix of topics moves, from 0 (not at all) to 1.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    events : EventStream
        ``rows, columns, deltas, times``, in the order in which they arrive.

    Examples
    --------
    >>> from skdp.datasets import make_event_stream
    >>> events = make_event_stream(1000, (20, 10), n_steps=4, random_state=0)
    >>> events.deltas.sum(), events.times.max()
    (np.int64(800), np.int64(3))
    """
    if not 0 <= deleted < 0.5:
        raise ValueError(
            "The 'deleted' parameter of make_event_stream must be a float in the range [0, 0.5). "
            f"Got {deleted!r} instead."
        )
    rng = np.random.default_rng(random_state)
    n_taken_back = round(deleted * n_events)
    n_new = n_events - n_taken_back
    likely = [rng.gamma(0.3, size=(n_topics, size)) for size in matrix_shape]
    mixes = rng.dirichlet(np.ones(n_topics), 2)
    share = drift * np.linspace(0, 1, n_new)
    topics = _draw_each((1 - share)[:, None] * mixes[0] + share[:, None] * mixes[1], rng)
    rows, columns = (_draw_by_topic(weights, topics, rng) for weights in likely)
    # An event is taken back after it has arrived: at a random place behind it.
    back = rng.choice(n_new, n_taken_back, replace=False)
    when = np.concatenate([np.arange(n_new), rng.uniform(back, n_new)])
    order = np.argsort(when, kind="stable")
    deltas = np.concatenate([np.ones(n_new, np.int64), np.full(n_taken_back, -1)])[order]
    which = np.concatenate([np.arange(n_new), back])[order]
    times = np.arange(n_events) * n_steps // n_events
    return EventStream(rows[which], columns[which], deltas, times)


def _draw_each(weights, rng):
    """Return one index for each row of weights."""
    edges = np.cumsum(weights, axis=1)
    drawn = rng.random(len(weights)) * edges[:, -1]
    return np.minimum((edges < drawn[:, None]).sum(axis=1), weights.shape[1] - 1)


def _draw_by_topic(weights, topics, rng):
    """Return one index for each event, drawn with the weights of its topic."""
    drawn = np.empty(len(topics), np.int64)
    for topic, row in enumerate(weights):
        mine = np.flatnonzero(topics == topic)
        drawn[mine] = rng.choice(len(row), len(mine), p=row / row.sum())
    return drawn

"""What becomes durable, in its order: commits of SQLite, and what is written to lock files."""

import os
import sqlite3
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest


def interrupt(half):
    raise KeyboardInterrupt


def stopping(strike, stop=interrupt):
    """Return an event that calls `stop(half)` from the one with this number on."""
    number = count()

    def event(name, half):
        if next(number) >= strike:
            stop(half)

    return event


@contextmanager
def recorded(event):
    """Call `event(name, half)` before and after each durable event; `half` does it by half."""
    write, fsync, truncate, connect = os.write, os.fsync, os.ftruncate, sqlite3.connect

    listeners = [event]

    def around(name, call, *args, half=lambda: None):
        for listener in listeners:
            listener(name, half)
        done = call(*args)
        for listener in listeners:
            listener(f"{name} done", lambda: None)
        return done

    class Cursor(sqlite3.Cursor):
        def execute(self, query, *values):
            name = query.split()[0]
            if name in ("SELECT", "PRAGMA"):
                return super().execute(query, *values)
            return around(name, super().execute, query, *values)

    class Connection(sqlite3.Connection):
        def cursor(self):
            return super().cursor(Cursor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda at, data: around(
            "write", write, at, data, half=lambda: write(at, data[: len(data) // 2])))  # fmt: skip
        patch.setattr(os, "fsync", lambda at: around("sync", fsync, at))
        patch.setattr(os, "ftruncate", lambda at, n: around("forget", truncate, at, n))
        patch.setattr(sqlite3, "connect", partial(connect, factory=Connection))
        try:
            yield
        finally:
            listeners.clear()  # what was opened here may stay open

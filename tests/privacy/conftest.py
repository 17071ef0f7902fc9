"""Ledgers and checkpoints of tests lie in memory: what they sync is asked by the order of acts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path():
    """Make a folder where temporary files are; `tools/durable.py` says what a disk would keep."""
    with TemporaryDirectory() as folder:
        yield Path(folder).resolve()

"""Benchmarks of skdp next to its peers; `python -m benchmarks` runs them all."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the canaries are among its tools

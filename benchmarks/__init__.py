"""Benchmarks of skdp beside its peers; `python -m benchmarks` runs them all."""

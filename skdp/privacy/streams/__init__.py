"""Releases over time: correlated noise, groups of streams, checkpoints, sketches."""

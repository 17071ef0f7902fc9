"""One budget over many fits."""

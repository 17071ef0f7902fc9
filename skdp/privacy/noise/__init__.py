"""The laws of the noise: words of entropy, the table, integers."""

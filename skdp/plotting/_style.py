"""What the displays share: axes, colours, and words."""

import textwrap

# Okabe and Ito's colours, which people with colour blindness tell apart; darkest first.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
GREY = "0.35"
RED = "#D55E00"


def axes_of(ax, figsize=(6.4, 4.2)):
    """Return (axes, figure): those given, or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "skdp.plotting needs matplotlib. Install it with `pip install skdp[plot]`."
        ) from error
    if ax is None:
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    return ax, ax.figure


def rgb(color):
    """Return "#rrggbb" as three numbers in [0, 1]."""
    return tuple(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))


def wrapped(text, width=70):
    """Break a sentence into lines."""
    return "\n".join(textwrap.wrap(text, width))


def log_ticks(axis, values):
    """Label a logarithmic axis with plain numbers, at most seven of them."""
    values = list(values)
    shown = values[:: max(1, -(-len(values) // 7))]
    axis.set_ticks(shown, [f"{value:.3g}" for value in shown])
    axis.set_ticks([], minor=True)

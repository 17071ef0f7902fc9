"""
Can daily private releases show when a pattern changed?
=======================================================

A service logs when people are active. Every night we publish the principal components of all visits
so far, for a month, on one privacy budget. On the sixteenth day visits at night begin: do the
published components show it, and how soon?
"""

# %%
# Each visit is one row: activity in 24 hours, scaled to norm 1. A person's visit comes once, in
# one batch. The batches are cut by the clock, not by the number of rows, since the number of rows
# is private.
import importlib.util

import numpy as np
from sklearn.decomposition import IncrementalPCA
from sklearn.preprocessing import normalize

from skdp import DPIncrementalPCA

rng = np.random.default_rng(0)
hours, days, change = np.arange(24), 30, 16


def bump(center, width):
    """Return activity around an hour of the day."""
    distance = np.abs((hours - center + 12) % 24 - 12)
    return np.exp(-((distance / width) ** 2))


office, evening, night = bump(11, 3), bump(20, 2), bump(3, 2)


def visits(day):
    """Return the visits of one day: office or evening, and from the sixteenth on also night."""
    n = rng.poisson(3000)
    share_at_night = 0.25 if day >= change else 0.0
    kind = rng.choice(3, n, p=[0.6 - share_at_night, 0.4, share_at_night])
    patterns = np.array([office, evening, night])[kind]
    return normalize(patterns * rng.gamma(2.0, 0.5, (n, 1)) + 0.1 * rng.random((n, 24)))


# %%
# One budget of epsilon = 1 pays for all thirty releases: their noise is correlated, so that it is
# only twice that of a single release. A fit a night, with thirty budgets, would need 5.5 times.
private = DPIncrementalPCA(2, epsilon=1.0, clip_norm=1.0, max_releases=days)
exact = IncrementalPCA(2)
history = {"exact": [], "private": []}
for day in range(1, days + 1):
    X = visits(day)
    for name, model in (("exact", exact), ("private", private)):
        model.partial_fit(X)
        variances = model.explained_variance_[:, None]
        history[name].append(np.sum(variances * model.components_**2, axis=0))
    if day in (1, 15, 20, 30):
        overlap = np.linalg.svd(private.components_ @ exact.components_.T, compute_uv=False)
        print(
            f"day {day:2d}: {private.n_samples_seen_:6d} visits so far (released), plane of the "
            f"components agrees to {np.mean(overlap**2):.3f}"
        )
print(private.privacy_spent_)

# %%
# The variance that the two components explain, hour by hour: the night appears on the right day.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(8, 6), layout="constrained", sharex=True)
    most = np.max(list(history.values()))
    for axis, (name, rows) in zip(axes, history.items(), strict=True):
        image = axis.imshow(np.array(rows).T, aspect="auto", origin="lower", cmap="viridis",
                            vmin=0, vmax=most, extent=(0.5, days + 0.5, 0, 24))  # fmt: skip
        axis.axvline(change - 0.5, color="white", linestyle=":", linewidth=2)
        axis.set_title(name)
        axis.set_ylabel("hour of the day (h)")
    axes[0].text(change, 13.5, "nights begin", color="white")
    figure.colorbar(image, ax=axes, label="explained variance (squared norm)")
    axes[1].set_xlabel("day of the release (day of the month)")
    figure.savefig("event_stream.png", dpi=150)
    print("\nwrote event_stream.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

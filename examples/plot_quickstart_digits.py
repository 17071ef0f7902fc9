"""
How much of a PCA survives privacy?
===================================

Five principal components of scikit-learn's digits (1797 images of 64 pixels), fitted without
privacy and with four privacy budgets. The number shown is the captured share: the part of the
squared norm of the data that lies in the fitted subspace.
"""

# %% Each image is one person's row. It is scaled to norm 1, which needs no other row. The rows are
# then centred and divided by their largest norm, so that `clip_norm=1` clips nothing.
#
# This centring uses the exact mean of the data, which `epsilon` does not cover. Here this is
# harmless, since digits is public; with private rows use `center="private"` instead.
import importlib.util

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from skdp import DPPCA

X = normalize(load_digits().data)
X -= X.mean(axis=0)
X /= np.linalg.norm(X, axis=1).max()


def captured_share(components):
    """Share of the squared norm of `X` inside the span of the orthonormal `components`."""
    return np.sum((X @ components.T) ** 2) / np.sum(X**2)


# %%
# Every fit draws fresh noise, so the last digits change from run to run. The share is computed from
# the rows themselves, so it may be shown for public data only.
epsilons = [0.5, 1, 2, 5]
best = captured_share(PCA(n_components=5).fit(X).components_)
shares = []
for epsilon in epsilons:
    pca = DPPCA(n_components=5, epsilon=epsilon, clip_norm=1, center="none").fit(X)
    shares.append(captured_share(pca.components_))

print("captured share of the digits, 5 components")
print(f"{'epsilon':>12}  {'share':>6}  {'of the best':>11}")
for epsilon, share in zip(epsilons, shares, strict=True):
    print(f"{epsilon:>12}  {share:>6.3f}  {share / best:>11.1%}")
print(f"{'not private':>12}  {best:>6.3f}  {1:>11.1%}")

# %%
# The receipt of the last fit: what was released, with how much noise, and what that cost.
print()
print(pca.privacy_report())

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(epsilons, shares, "o-", label="DPPCA, one fit each")
    axes.axhline(best, color="0.4", linestyle="--", label="PCA, not private")
    axes.axhline(5 / 64, color="0.4", linestyle=":", label="a random subspace")
    axes.set_ylim(0, 0.62)
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget epsilon (delta = 1e-6)")
    axes.set_ylabel("captured share of the squared norm")
    axes.set_title("digits: 1797 rows, 64 pixels, 5 components")
    axes.legend(loc="center right")
    figure.savefig("quickstart_digits.png", dpi=150)
    print("\nwrote quickstart_digits.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

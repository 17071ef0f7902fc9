"""
How many of the released components are signal?
===============================================

A private PCA releases as many eigenvalues as it is asked for, and some of them are noise. The noise
scale in the report gives the largest eigenvalue that noise alone would produce. Components with
larger eigenvalues are in the data. Those with smaller ones may be noise.
"""

# %%
# Eight directions among forty, each weaker than the one before. Everything that is shown below
# was released by the fits: `SpectrumDisplay` reads no row.
import importlib.util

import numpy as np

from skdp import DPPCA

rng = np.random.default_rng(0)
n, d, strengths = 20_000, 40, 0.6 ** np.arange(8)
directions = np.linalg.qr(rng.standard_normal((d, 8)))[0].T
X = (rng.standard_normal((n, 8)) * strengths) @ directions + 0.01 * rng.standard_normal((n, d))
X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True) / 2)  # rows of norm 2 at most

# %%
# `n_components="auto"` keeps the components above this noise level. The choice reads released
# values, so it costs nothing. A larger budget lowers the level, and more components exceed it.
fits = {}
for epsilon in (0.05, 0.2, 1.0):
    pca = DPPCA("auto", epsilon=epsilon, clip_norm=2.0, center="none").fit(X)
    fits[epsilon] = pca
    print(f"epsilon {epsilon:>4}: {pca.n_components_} components above the noise")

# %%
# A fit that releases all forty eigenvalues clips rows less, because clipping biases eigenvalues. So
# it has more noise than a fit of few components.
whole = DPPCA(epsilon=0.2, clip_norm=2.0, center="none").fit(X)
print()
print(whole.privacy_report())

# %%
# This picture may be published.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    from skdp.plotting import SpectrumDisplay

    figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
    display = SpectrumDisplay.from_estimator(whole, ax=ax)
    ax.set(yscale="log", ylim=(1, 5e4))
    print(f"\nnoise alone has eigenvalues of up to {display.noise_edge:.0f}")
    figure.savefig("noise_edge.png", dpi=150)
    print("wrote noise_edge.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

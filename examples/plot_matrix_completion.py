"""
Can a table of ratings be completed while each rating stays private?
====================================================================

Two hundred thousand people each rate one product. Who rated what, and how, stays private: the
completed table would be nearly the same if any one person's rating had never been given.
"""

# %% A rating of product b in shop a is a measurement with the one-hot matrix e_a e_b'. As rows
# these are a CSR matrix with a single 1 each, so the work is linear in the number of ratings. The
# true table is public here, so that the error can be computed; it has rank two.
import importlib.util

import numpy as np
import scipy.sparse as sp

from skdp.regression import DPTraceRegressor

rng = np.random.default_rng(0)
n, shops, products = 200_000, 60, 80
preference = np.outer(np.cos(np.linspace(0, 3, shops)), np.cos(np.linspace(0, 5, products)))
season = np.outer(np.linspace(-1, 1, shops), np.sin(np.linspace(0, 6, products)))
table = 2 * preference + 1.5 * season
cells = rng.integers(shops * products, size=n)
X = sp.csr_array((np.ones(n), cells, np.arange(n + 1)), shape=(n, shops * products))
y = table.ravel()[cells] + rng.standard_normal(n)

# %%
# One fit for each budget. `plan` says beforehand, without data, how many ratings are needed.
errors = {}
fits = {}
for epsilon in (0.5, 1.0, 4.0):
    model = DPTraceRegressor(rank=2, matrix_shape=table.shape, epsilon=epsilon)
    print(f"epsilon {epsilon}: {model.required_samples()}")
    fits[epsilon] = model.fit(X, y).coef_
    errors[epsilon] = np.linalg.norm(fits[epsilon] - table) / np.linalg.norm(table)

# %%
# For comparison, without privacy and without low rank: the mean rating of each cell.
sums = np.bincount(cells, y, table.size)
means = (sums / np.maximum(np.bincount(cells, minlength=table.size), 1)).reshape(table.shape)
plain = np.linalg.norm(means - table) / np.linalg.norm(table)
for epsilon, error in errors.items():
    print(f"epsilon {epsilon}: relative error {error:.3f}")
print(f"mean of each cell, not private: {plain:.3f}")
print(model.privacy_report())

# %%
# Low rank saves far more error than privacy costs: the private tables beat the exact cell means.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    pictures = {"truth": table, "cell means, not private": means}
    pictures |= {f"private, epsilon {epsilon:g}": fit for epsilon, fit in fits.items()}
    figure, axes = plt.subplots(1, 5, figsize=(13, 3.2), layout="constrained", sharey=True)
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        image = axis.imshow(picture, cmap="RdBu", vmin=-3, vmax=3, aspect="auto")
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("product (number)")
    axes[0].set_ylabel("shop (number)")
    figure.colorbar(image, ax=axes, label="rating, centred (stars)")
    figure.savefig("matrix_completion.png", dpi=150)
    print("\nwrote matrix_completion.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

"""
Which pixels matter, if no patient may be seen?
===============================================

Each of thirty thousand patients has one image from a sensor, and one measured value. We learn which
pattern in the image drives the value, as a matrix of low rank, with differential privacy for each
patient's image and value together.
"""

# %%
# Neighbouring pixels are correlated, and the scale of the sensor is not known.
# `measurement_covariance="private"`, the default, learns row and column covariances with 16% of the
# budget. One percent of the sensors is broken.
import importlib.util
import warnings

import numpy as np

from skdp.exceptions import UtilityWarning
from skdp.regression import DPTraceRegressor

rng = np.random.default_rng(0)
n, d = 30_000, 24
steps = np.arange(d)
blur = np.linalg.cholesky(0.6 ** np.abs(np.subtract.outer(steps, steps)))
images = blur @ rng.standard_normal((n, d, d)) @ blur.T
bump = np.exp(-(((steps - 8) / 4.0) ** 2)), np.exp(-(((steps - 14) / 3.0) ** 2))
stripe = np.where((steps > 15) & (steps < 20), -0.7, 0.0), np.linspace(0, 1, d)
pattern = np.outer(*bump) + np.outer(*stripe)
pattern /= np.linalg.norm(pattern)
values = np.einsum("nij,ij->n", images, pattern) + 0.5 * rng.standard_normal(n)
images[:300] *= 100.0
values[:300] = 1e4

# %%
# `privacy_unit="label"` protects the measured values only, where the images are public.
# A larger epsilon has less noise, but broken sensors do not count more: values far from all others
# are cut. (Rare values among equal ones are not.)
fits = {
    "private, epsilon 1": DPTraceRegressor(rank=2, epsilon=1.0),
    "private, epsilon 16": DPTraceRegressor(rank=2, epsilon=16.0),
    "values private, epsilon 1": DPTraceRegressor(rank=2, epsilon=1.0, privacy_unit="label"),
}
for name, model in fits.items():
    model.fit(images, values)
    error = np.linalg.norm(model.coef_ - pattern)
    print(
        f"{name:<26} relative error {error:.3f}, singular values {model.singular_values_.round(2)}"
    )

# %%
# With too few patients for the budget the answer is the zero matrix and a warning, never noise that
# looks like a pattern.
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", UtilityWarning)
    DPTraceRegressor(rank=2, epsilon=0.5).fit(images[:300], values[:300])
print(caught[0].message)

# %%
# The pattern survives privacy, correlated pixels and broken sensors.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    pictures = {"truth": pattern} | {name: model.coef_ for name, model in fits.items()}
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained", sharey=True)
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        image = axis.imshow(picture, cmap="RdBu", vmin=-0.25, vmax=0.25)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("column (pixel)")
    axes[0].set_ylabel("row (pixel)")
    figure.colorbar(image, ax=axes, label="weight of the pixel")
    figure.savefig("sensor_images.png", dpi=150)
    print("\nwrote sensor_images.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

"""
A scatter plot that shows no row
================================

Most people fit a PCA to draw a score plot. It may not be published: each point is a row.
`DPScoreDensity` releases where rows lie in the plane of two released components, as a density or
as one ellipse for each class, whichever the number of rows can pay for. On the left the exact
points, which stay with you; next to them what may be published at epsilon .5, 1 and 3 (as much
again was spent on the components). Each picture has components of its own: two that explain about
as much may be mirrored or rotated.
"""

# %%
# Three tables: 20,000 rows in four groups, measurements of three species (1,500 rows drawn like
# scikit-learn's iris), and the digits with their ten classes of 180 rows each.
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from skdp import DPPCA, DPScoreDensity
from skdp.plotting import ScoreDisplay

rng = np.random.default_rng(0)
centers = 2 * rng.standard_normal((4, 8))
groups = rng.integers(0, 4, 20_000)
blobs = centers[groups] + rng.standard_normal((20_000, 8)) * [2, 1.5, 1, 1, 0.5, 0.5, 0.5, 0.5]

iris = load_iris()
species = rng.integers(0, 3, 1500)
means = np.array([iris.data[iris.target == k].mean(axis=0) for k in range(3)])
covariances = [np.cov(iris.data[iris.target == k].T) for k in range(3)]
flowers = np.array([rng.multivariate_normal(means[k], covariances[k]) for k in species])

digits = load_digits()
images = normalize(digits.data)

tables = {
    "20,000 rows, 4 groups": (blobs, groups, {"bounds": (-15, 15)}),
    "1,500 flowers, 3 species": (flowers, species, {"bounds": (0, 8)}),
    "1,797 digits, 10 classes": (images, digits.target, {"clip_norm": 1.0}),
}


# %%
# Fit components, then release the density in the plane of the first two. Cells that do not exceed
# the noise are empty. Contours hold half and nine tenths of a class.
def private_picture(X, y, epsilon, bound, ax):
    pca = DPPCA(n_components=2, epsilon=epsilon, **bound).fit(X)
    picture = DPScoreDensity.from_model(pca, epsilon=epsilon, classes=np.unique(y)).fit(X, y)
    ScoreDisplay.from_estimator(picture, n_loadings=3, ax=ax)
    ax.set_title(f"epsilon = {epsilon}: {picture.kind_}")
    if picture.kind_ == "ellipse":
        ax.get_legend().remove()  # each stands in its ellipse
    return picture


# The colours of the display, for the exact points.
COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000"]


figure, axes = plt.subplots(3, 4, figsize=(18, 13), layout="constrained")
for row, (name, (X, y, bound)) in zip(axes, tables.items(), strict=True):
    scores = PCA(n_components=2).fit_transform(X)
    colors = np.array(COLORS)[y % len(COLORS)]
    row[0].scatter(*scores.T, c=colors, s=2, rasterized=True)
    for k in np.unique(y):
        row[0].text(*scores[y == k].mean(axis=0), k, weight="bold", ha="center", va="center")
    row[0].set_title(f"{name}, not private")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small budgets warn
        for ax, epsilon in zip(row[1:], (0.5, 1.0, 3.0), strict=True):
            picture = private_picture(X, y, epsilon, bound, ax)
            shown = int(picture.above_noise_.sum())
            print(f"{name}, epsilon {epsilon}: {picture.kind_}, {shown} classes shown")

figure.savefig("score_plot.png", dpi=80)
print("wrote score_plot.png")

# %%
# What the picture costs. One row changes one cell (or the moments of one class), so that noise does
# not grow with the number of features.
print(picture.privacy_report())

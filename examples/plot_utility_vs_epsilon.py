"""
How much epsilon is enough?
===========================

The captured share of a private PCA against epsilon, for four numbers of rows, on a public proxy of
the private rows. The noise does not depend on the number of rows, but the signal grows with it:
four times the rows give the same result at about a quarter of the epsilon.

Epsilon is chosen on such a curve, before the private rows are touched. A grid search over epsilon
on private rows spends a multiple of the largest one, to learn that the largest is the best.
"""

# %% The proxy: rows with three strong directions among fifty. It is synthetic, so that its captured
# share may be computed exactly; with private rows this would be a leak. What it must share with the
# private rows is public: the number of features, and how large a row can be.
import importlib.util
import math

import numpy as np
from sklearn.model_selection import GridSearchCV

from skdp import DPPCA
from skdp.datasets import make_spiked_rows
from skdp.model_selection import IndependentKFold, search_cost
from skdp.privacy.accounting.losses import epsilon_from_mu_delta

D, K, CAPTURED, DELTA, CLIP_NORM = 50, 3, 0.6, 1e-6, 1.5
sizes = [500, 2000, 8000, 32_000]
epsilons = np.geomspace(0.005, 2, 8)
n_fits = 5


def captured_share(X, components):
    """Share of the squares of X inside the span of the components."""
    return np.sum((X @ components.T) ** 2) / np.sum(X**2)


def signal_meets_noise(n):
    """The epsilon at which the strong eigenvalues of X'X equal the edge of the noise's spectrum."""
    eigenvalue = n * CAPTURED / K
    return epsilon_from_mu_delta(CLIP_NORM**2 * math.sqrt(2 * D) / eigenvalue, DELTA)


# %%
# Every point is an average over fits with fresh noise on the same rows.
shares, best = {}, {}
for n in sizes:
    X = make_spiked_rows(n, D, K, CAPTURED, random_state=0)
    best[n] = captured_share(X, np.linalg.svd(X, full_matrices=False)[2][:K])
    shares[n] = np.array(
        [
            [
                captured_share(X, model.fit(X).components_)
                for model in [DPPCA(K, epsilon=epsilon, clip_norm=CLIP_NORM, center="none")]
                for _ in range(n_fits)
            ]
            for epsilon in epsilons
        ]
    )

print(f"captured share of {K} components among {D} features, mean of {n_fits} fits")
print(f"{'epsilon':>16}" + "".join(f"{epsilon:>7.2g}" for epsilon in epsilons) + "   not private")
for n in sizes:
    means = "".join(f"{share:>7.3f}" for share in shares[n].mean(axis=1))
    print(f"{n:>10} rows {means}{best[n]:>14.3f}")
print(f"a random subspace captures {K / D:.3f}")
print("signal meets noise at epsilon", *(f"{signal_meets_noise(n):.2g}" for n in sizes))

# %%
# Take the smallest epsilon of the curve that keeps nine tenths of what is there to capture, and
# fit the private rows once. (Here we may check the result: they are synthetic too.)
n = 8000
enough = next(
    epsilon
    for epsilon, share in zip(epsilons, shares[n].mean(axis=1), strict=True)
    if share > 0.9 * best[n]
)
private_rows = make_spiked_rows(n, D, K, CAPTURED, random_state=1)
model = DPPCA(K, epsilon=enough, clip_norm=CLIP_NORM, center="none").fit(private_rows)
print(
    f"\n{n} private rows, fitted once at epsilon={enough:.2g}: captured share "
    f"{captured_share(private_rows, model.components_):.3f}"
)
search = GridSearchCV(
    DPPCA(K, clip_norm=CLIP_NORM, center="none"), {"epsilon": epsilons}, cv=IndependentKFold(5)
)
print(
    "a grid search over the curve's epsilons on those rows would have spent epsilon="
    f"{search_cost(search, n).epsilon(DELTA):.3g}, and picked {max(epsilons):.2g}"
)

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 4.3), layout="constrained")
    colors = plt.get_cmap("viridis")([0.8, 0.55, 0.3, 0.05])
    for n, color, marker in zip(sizes, colors, "os^D", strict=True):
        label = f"{n} rows"
        axes.semilogx(
            epsilons, shares[n].mean(axis=1), color=color, marker=marker, ms=5, label=label
        )
        low, high = shares[n].min(axis=1), shares[n].max(axis=1)
        axes.fill_between(epsilons, low, high, color=color, alpha=0.25, linewidth=0)
        axes.plot(signal_meets_noise(n), 0.015, marker="|", ms=14, mew=2, color=color)
    axes.axhline(best[sizes[-1]], color="0.3", linestyle="--", label="PCA, not private")
    axes.axhline(K / D, color="0.3", linestyle=":", label="a random subspace")
    ticks = [0.005, 0.02, 0.1, 0.5, 2]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 0.82)
    axes.set_xlabel("epsilon (delta = 1e-6); bars: where the signal meets the noise")
    axes.set_ylabel("captured share of the squared norm")
    axes.set_title(f"spiked rows, {D} features, {K} components, {n_fits} fits: mean and range")
    axes.legend(loc="upper center", ncols=3, fontsize="small")
    figure.savefig("utility_vs_epsilon.png", dpi=150)
    print("\nwrote utility_vs_epsilon.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

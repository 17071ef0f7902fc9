"""
How many rows does a private model need?
========================================

`plan` answers from the parameters and the shape alone, before any row is read or any budget spent.
Here its answer is drawn for three budgets, and then checked by fits on synthetic rows.
"""

# %%
# Five components of a hundred features that hold half of the squared length: what is assumed of the
# rows is printed with the plan. The error is the share of what could be captured that is lost.
import importlib.util

import numpy as np

from skdp import DPPCA
from skdp.datasets import make_spiked_rows

D, K, SIGNAL = 100, 5, 0.5
pca = DPPCA(K, clip_norm=1.0, center="none")
print(pca.plan(n_samples=5000, n_features=D, signal=SIGNAL))

# %%
# The check: rows as assumed, cut to length one, fitted at each budget. On private rows such a
# measurement would be a leak; these are generated.
epsilons, sizes = (0.3, 1.0, 3.0), (400, 1500, 6000, 24_000)


def lost(X, components):
    """Share of the best captured squared length that the components lose."""
    best = np.sum(np.linalg.eigvalsh(X.T @ X)[-K:])
    return 1 - np.sum((X @ components.T) ** 2) / best


measured = {epsilon: [] for epsilon in epsilons}
for n in sizes:
    X = make_spiked_rows(n, D, K, SIGNAL, random_state=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    for epsilon in epsilons:
        model = DPPCA(K, epsilon=epsilon, clip_norm=1.0, center="none")
        measured[epsilon].append(np.median([lost(X, model.fit(X).components_) for _ in range(3)]))

print()
print(f"{'rows':>8}" + "".join(f"  epsilon {epsilon:>4}: plan, fits" for epsilon in epsilons))
for i, n in enumerate(sizes):
    line = ""
    for epsilon in epsilons:
        planned = pca.set_params(epsilon=epsilon).plan(n, D, signal=SIGNAL).error
        line += f"{planned:>16.3f}, {measured[epsilon][i]:<7.3f}"
    print(f"{n:>8}{line}")

# %%
# Curves are plans, marks are fits. Three times the budget does with about a third of the rows.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    from skdp.plotting import PlanDisplay

    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    display = PlanDisplay.from_estimator(
        pca, n_features=D, n_samples=np.geomspace(200, 1e5, 40).astype(int), epsilons=epsilons,
        target=0.1, signal=SIGNAL, ax=axes,
    )  # fmt: skip
    for epsilon, marker in zip(epsilons, "os^", strict=True):
        axes.plot(sizes, measured[epsilon], marker, color="0.2", label=f"fits, {epsilon}")
    axes.legend(fontsize="small")
    print("\nrows needed for an error of 0.1:", display.needed_)
    figure.savefig("rows_needed.png", dpi=150)
    print("wrote rows_needed.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

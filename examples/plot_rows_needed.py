"""
How many rows does a private model need?
========================================

`plan` answers before any row is read or any budget spent: it fits data that it draws itself. Here
its answer stands next to fits on rows that another generator made.
"""

# %% Five components of a hundred features, none of them skewed, that hold half of the squared norm:
# what is assumed of the rows is printed with the plan. The error is the lost fraction of the
# squared norm that could be captured.
import numpy as np

from skdp import DPPCA
from skdp.datasets import make_spiked_rows

D, K = 100, 5
FACTS = {"signal": 0.5, "skew": np.zeros(D)}
pca = DPPCA(K, clip_norm=1.0, center="none")
print(pca.plan(n_samples=5000, n_features=D, **FACTS))

# %%
# The check: rows as assumed, scaled to norm 1, fitted at each budget. On private rows such a
# measurement would be a leak; these are generated.
epsilons, sizes = (0.3, 1.0, 3.0), (400, 1500, 6000, 24_000)


def lost(X, components):
    """Share of the best captured squared norm that the components lose."""
    best = np.sum(np.linalg.eigvalsh(X.T @ X)[-K:])
    return 1 - np.sum((X @ components.T) ** 2) / best


measured = {epsilon: [] for epsilon in epsilons}
for n in sizes:
    X = make_spiked_rows(n, D, K, FACTS["signal"], random_state=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    for epsilon in epsilons:
        model = DPPCA(K, epsilon=epsilon, clip_norm=1.0, center="none")
        measured[epsilon].append(np.median([lost(X, model.fit(X).components_) for _ in range(3)]))

print()
print(f"{'rows':>8}" + "".join(f"  epsilon {epsilon:>4}: plan, fits" for epsilon in epsilons))
for i, n in enumerate(sizes):
    line = ""
    for epsilon in epsilons:
        planned = pca.set_params(epsilon=epsilon).plan(n, D, **FACTS).error
        line += f"{planned:>16.3f}, {measured[epsilon][i]:<7.3f}"
    print(f"{n:>8}{line}")

"""
Can groups be found in a graph while its edges stay secret?
===========================================================

Spectral clustering of a stochastic block model. `DPSpectralEmbedding` releases one position for
each node, with privacy for each single edge; k-means on the released positions costs nothing more.
The number shown is the adjusted Rand index: 1 if the groups are found, 0 for a random guess.
"""

# %% A graph of 1500 nodes in three groups. Each node has about 200 neighbours; within a group an
# edge is about four times as likely as between groups. We search for the groups; who is linked to
# whom is private.
import importlib.util

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from skdp import DPSpectralEmbedding
from skdp.datasets import make_block_graph

A, groups = make_block_graph(1500, 3, gap=100.0, mean_degree=200.0, random_state=0)


def agreement(embedding):
    """Adjusted Rand index of k-means on the embedding against the true groups."""
    found = KMeans(3, n_init=4, random_state=0).fit(embedding).labels_
    return adjusted_rand_score(groups, found)


# %% Each fit draws fresh noise. Three groups need two dimensions: the direction of the degrees,
# which all nodes share, is released and removed.
epsilons, n_fits = [0.25, 0.5, 0.75, 1, 2], 4
embeddings, scores = {}, []
for epsilon in epsilons:
    fits = [DPSpectralEmbedding(n_components=2, epsilon=epsilon).fit(A) for _ in range(n_fits)]
    scores.append([agreement(model.embedding_) for model in fits])
    embeddings[epsilon] = fits[0].embedding_

print(f"adjusted Rand index, {n_fits} fits each, {A.shape[0]} nodes, {A.nnz // 2} edges")
print(f"{'epsilon':>8}  {'median':>6}  {'worst':>6}  {'best':>6}")
for epsilon, values in zip(epsilons, scores, strict=True):
    print(f"{epsilon:>8}  {np.median(values):>6.2f}  {min(values):>6.2f}  {max(values):>6.2f}")

# %%
# The embedding of every node may be published: nodes are public, edges are not. Privacy for one
# edge hides one relation; it does not hide that somebody has very many of them.
print()
print(fits[-1].privacy_spent_.statement())

# %%
# The same as a picture: the sweep, and the released positions at two budgets.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    low, middle, high = (f(scores, axis=1) for f in (np.min, np.median, np.max))
    panels[0].semilogx(epsilons, middle, "o-", label=f"median of {n_fits} fits")
    panels[0].fill_between(epsilons, low, high, alpha=0.3, label="range")
    panels[0].axhline(0, color="0.3", linestyle=":", label="random guess")
    panels[0].set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    panels[0].minorticks_off()
    panels[0].set_xlabel("epsilon for one edge (delta = 1e-6)")
    panels[0].set_ylabel("adjusted Rand index")
    panels[0].set_title("groups found")
    panels[0].legend(loc="center right")
    for panel, epsilon in zip(panels[1:], (0.5, 1), strict=True):
        for group, marker in enumerate("os^"):
            points = embeddings[epsilon][groups == group]
            panel.scatter(*points.T, s=6, alpha=0.5, marker=marker, label=f"group {group + 1}")
        panel.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        panel.set_xlabel("first released coordinate")
        panel.set_ylabel("second released coordinate")
        panel.set_title(f"one embedding at epsilon = {epsilon}")
    panels[2].legend(loc="upper right", markerscale=2, fontsize="small")
    figure.savefig("block_model.png", dpi=150)
    print("\nwrote block_model.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

"""
Can a recommender be trained without telling who liked what?
============================================================

The low-pass filter behind GF-CF and BSPM scores items by projecting a user's history on the leading
item directions. `DPTruncatedSVD(privacy_unit="interaction")` releases these directions with privacy
for each single interaction. The number shown is Recall@20: the part of the hidden interactions of a
user that is among the first twenty suggestions.
"""

# %%
# Synthetic interactions: 3000 users, 1500 items with Zipf popularity, eight planted tastes. A fifth
# of the interactions is hidden, at random, and has to be found again.
import importlib.util
import warnings

import numpy as np
import scipy.sparse as sp

from skdp import DPTruncatedSVD, PrivacyWarning
from skdp.datasets import make_interactions

R = make_interactions(3000, 1500, 150_000, 8, random_state=0).tocoo()
known = np.random.default_rng(1).random(R.nnz) < 0.8
train, hidden = (
    sp.csr_array((R.data[part], (R.row[part], R.col[part])), shape=R.shape)
    for part in (known, ~known)
)


def recall(scores, size=20):
    """Average Recall@20 over users with hidden interactions; known items are not suggested."""
    scores = np.where(train.toarray() > 0, -np.inf, scores)
    first = np.argpartition(-scores, size, axis=1)[:, :size]
    wanted = hidden.toarray()
    found = np.take_along_axis(wanted, first, axis=1).sum(axis=1)
    n_wanted = wanted.sum(axis=1)
    return float(np.mean(found[n_wanted > 0] / n_wanted[n_wanted > 0]))


# %%
# The released components are the model. Anybody may have them: one interaction more or less hardly
# changes their distribution. A user's scores need the user's own history as well, so they are
# computed on the user's device and shown to that user alone.
def low_pass(components):
    """Project each history on the components: r V V'."""
    return (train @ components.T) @ components


options = {"n_components": 8, "privacy_unit": "interaction", "degree_floor": 5}
epsilons, n_fits = [0.5, 1, 1.5, 2, 4, 8], 3
recalls = []
for epsilon in epsilons:
    fits = [DPTruncatedSVD(epsilon=epsilon, **options).fit(train) for _ in range(n_fits)]
    recalls.append([recall(low_pass(svd.components_)) for svd in fits])

with warnings.catch_warnings():  # the same filter without noise: not private, and it says so
    warnings.simplefilter("ignore", PrivacyWarning)
    exact = DPTruncatedSVD(epsilon=np.inf, **options).fit(train)
best = recall(low_pass(exact.components_))
popular = recall(np.broadcast_to(train.sum(axis=0), R.shape))

# %%
# With a large epsilon the private filter lies a little above the exact one. Noise does not help:
# the private iteration shortens its queries where few items dominate, and so spreads its weight
# over more items.
#
# Privacy for one interaction is a small unit. What the same fit means for all interactions of a
# user together is `user_level_mu_`: far above 1, so it is no promise for a whole history.
print(f"Recall@20, {R.shape[0]} users, {R.shape[1]} items, {train.nnz} known interactions")
print(f"{'epsilon':>22}  {'Recall@20':>9}")
for epsilon, values in zip(epsilons, recalls, strict=True):
    print(f"{epsilon:>22}  {np.mean(values):>9.3f}")
print(f"{'filter, not private':>22}  {best:>9.3f}")
print(f"{'popularity, not private':>22} {popular:>9.3f}")
print()
print("May be published: components_, singular_values_, the receipt (all that fit has set).")
print("Stays with the user: the history, transform(history), the scores and the suggestions.")
print("Never publish scores of all users: they hold exact histories, epsilon does not cover them.")
one = DPTruncatedSVD(epsilon=1.0, **options).fit(train)
print(f"{one.privacy_spent_}: mu {one.privacy_spent_.mu:.3f} for one interaction, at most")
print(f"{one.user_level_mu_:.1f} for all interactions of a user: no protection at that level.")

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    low, middle, high = (f(recalls, axis=1) for f in (np.min, np.mean, np.max))
    axes.semilogx(epsilons, middle, "o-", label="private filter")
    axes.fill_between(epsilons, low, high, alpha=0.3, label=f"range of {n_fits} fits")
    axes.axhline(best, color="0.3", linestyle="--", label="the same filter, not private")
    axes.axhline(popular, color="C1", linestyle=":", label="most popular items, not private")
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_ylim(0, None)
    axes.set_xlabel("epsilon for one interaction (delta = 1e-6)")
    axes.set_ylabel("Recall@20 on hidden interactions")
    axes.set_title("synthetic interactions: 3000 users, 1500 items, 8 components")
    axes.legend(loc="lower right")
    figure.savefig("recommender.png", dpi=150)
    print("\nwrote recommender.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

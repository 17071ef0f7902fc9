"""
Can a recommender learn from a stream of ratings that it never stores?
======================================================================

Ratings arrive as updates (user, item, stars). `DPLowRankFactorizer` keeps two small sketches that
contain noise from the start, so not even the memory of the machine holds a rating. At the end it
releases a factorisation that is private for each single rating.
"""

# %%
# 3000 users and 400 items; a matrix of rank three stands behind the ratings, which are centred and
# lie in [-2, 2]. They arrive in random order, and one in twenty is taken back later.
import importlib.util

import numpy as np

from skdp import DPLowRankFactorizer

rng = np.random.default_rng(0)
n_users, n_items, rank = 3000, 400, 3
preference = rng.choice([-1.0, 1.0], (n_users, rank)) @ rng.choice([-0.6, 0.6], (rank, n_items))
users, items = np.nonzero(rng.random((n_users, n_items)) < 0.7)
order = rng.permutation(len(users))
users, items = users[order], items[order]
stars = np.clip(preference[users, items] + 0.3 * rng.standard_normal(len(users)), -2, 2)
taken_back = rng.random(len(users)) < 0.05


def stream(epsilon, batch=100_000):
    """Feed all ratings, then those that are taken back with the opposite sign."""
    model = DPLowRankFactorizer(
        rank,
        epsilon=epsilon,
        privacy_unit="entry",
        unit_bound=(-2.0, 2.0),
        matrix_shape=(n_users, n_items),
        method="two_sketch",
        sketch="sparse",
        sketch_size=(100, 400),
    )
    for start in range(0, len(users), batch):
        part = slice(start, start + batch)
        model.update(users[part], items[part], stars[part])
    model.update(users[taken_back], items[taken_back], -stars[taken_back])
    return model.release()


# %%
# How well does the released matrix rank the items of a user? The correlation with the true
# preference, on the items that were never rated.
hidden = np.ones((n_users, n_items), bool)
hidden[users, items] = False
epsilons, scores = [2, 4, 8, 16, 32], []
for epsilon in epsilons:
    model = stream(epsilon)
    guess = model.reconstruct()
    spread = guess[hidden].std() > 0
    scores.append(np.corrcoef(guess[hidden], preference[hidden])[0, 1] if spread else 0.0)

print(f"{len(users)} ratings; sketches of {model.state_bytes_ / 1e6:.1f} MB")
for epsilon, score in zip(epsilons, scores, strict=True):
    print(f"epsilon {epsilon:>4}: correlation {score:.2f}")

# %%
# A rating that is taken back is a second update of its unit. The guarantee is for updates that sum
# to 2 in absolute value. To cover both, double the bounds.
print(model.privacy_spent_.statement())

# %%
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    panel.semilogx(epsilons, scores, "o-", label="released from sketches")
    panel.axhline(0, color="0.3", linestyle=":", label="a random guess")
    panel.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    panel.minorticks_off()
    panel.set(xlabel="epsilon for one rating (delta = 1e-6)", ylim=(-0.05, 1.05))
    panel.set_ylabel("correlation with the true preference")
    panel.set_title(f"{n_users} users, {n_items} items, ratings as a stream")
    panel.legend(loc="center right")
    figure.savefig("rating_stream.png", dpi=150)
    print("\nwrote rating_stream.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

"""
Can a recommender be trained without telling who liked what?
============================================================

`DPRecommender` scores items by noisy popularity and by latent factors above the noise. The
number shown is Recall@20: the part of the held-out items of a user that is among the first twenty
recommendations. The baseline is popularity, which needs very little budget.
"""

# %%
# Interactions as hard as those of real shops: 6000 users, 1000 items with a heavy tail, five
# factors that overlap and are mixed by each user. A fifth of the items is held out, at random, and
# has to be found again. Factors that chance alone could explain are left out like noise.
import importlib.util
import warnings

import numpy as np

from skdp.datasets import make_user_items
from skdp.model_selection import split_interactions
from skdp.recommend import DPRecommender, recall_at_n

R = make_user_items(6000, 1000, 20, 5, overlap=0.2, spread=3.0, tail=0.7, random_state=0)
known, held_out = split_interactions(R, random_state=1)


def recall(model):
    """Average Recall@20; known items are not recommended."""
    return recall_at_n(model.recommend(known)[0], held_out)


# %%
# The fitted filter may be published: one user more or less (or one interaction) hardly changes its
# distribution. A user's list needs the user's own history as well, so it goes to that user alone.
epsilons = [0.3, 0.5, 1, 2, 3, 5, 10]
units = {"row": "one user", "interaction": "one interaction"}
recalls = {
    unit: [recall(DPRecommender(epsilon=e, privacy_unit=unit).fit(known)) for e in epsilons]
    for unit in units
}

with warnings.catch_warnings():  # not private, and it says so
    warnings.simplefilter("ignore", UserWarning)
    best = recall(DPRecommender(epsilon=np.inf).fit(known))
    popular = recall(DPRecommender(epsilon=np.inf, algorithm="popularity").fit(known))

print(f"Recall@20, {R.shape[0]} users, {R.shape[1]} items, {known.nnz} known interactions")
print(f"{'epsilon':>24}" + "".join(f"{text:>18}" for text in units.values()))
for i, epsilon in enumerate(epsilons):
    print(f"{epsilon:>24}" + "".join(f"{recalls[unit][i]:>18.3f}" for unit in units))
print(f"{'filter, not private':>24}{best:>18.3f}")
print(f"{'popularity, not private':>24}{popular:>18.3f}")

# %%
# Which algorithm the fit chose, and how many factors exceed the noise.
model = DPRecommender(epsilon=1.0).fit(known)
print(model.algorithm_reason_)
print(f"{model.rank_} factors on {len(model.selected_items_)} items")
print(model.privacy_report())

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for unit, text in units.items():
        axes.semilogx(epsilons, recalls[unit], "o-", label=f"private for {text}")
    axes.axhline(best, color="0.3", linestyle="--", label="the same filter, not private")
    axes.axhline(popular, color="0.3", linestyle=":", label="most popular items, not private")
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_ylim(0, 0.55)
    axes.set_xlabel("epsilon (delta at most 1e-6)")
    axes.set_ylabel("Recall@20 on held-out items")
    axes.set_title("synthetic histories: 6000 users, 1000 items")
    axes.legend(loc="lower right")
    figure.savefig("recommender.png", dpi=150)
    print("\nwrote recommender.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

"""
Can short messages train a private classifier?
==============================================

Words are hashed to thousands of columns, of which one message fills a dozen, and the messages that
matter are rare. Noise on all products of all columns would hide everything, and a classifier that
always says "ordinary" would be right most of the time.

Here two releases suffice: products of all columns with the labels, which give the direction in
which the classes differ, and the moments of that direction and of the most frequent columns. The
totals of the classes are in the second one, so that balancing them costs nothing.
"""

# %%
# Six thousand made-up messages of 15 words, one in eight unwanted. Words have ranks, as in any
# language; unwanted messages like some of them more. The list of words is public, and so is the
# hash; which of them occur is not.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline

from skdp import DPRidgeClassifier, check_pipeline

rng = np.random.default_rng(0)
n, n_words = 6000, 3000
syllables = ["ba", "do", "ki", "lu", "me", "no", "ra", "si", "ta", "vu"]
words = np.array(["".join(syllables[int(c)] for c in f"{i:04d}") for i in range(n_words)])
ordinary = 1 / np.arange(1, n_words + 1)
unwanted = ordinary * np.exp(1.2 * rng.standard_normal(n_words))
y = np.where(rng.random(n) < 0.13, "unwanted", "ordinary")
laws = {"ordinary": ordinary / ordinary.sum(), "unwanted": unwanted / unwanted.sum()}
messages = [" ".join(rng.choice(words, 15, p=laws[label])) for label in y]
train, test = slice(0, 4000), slice(4000, n)
print(messages[0])

# %%
# The hash treats each message by itself and learns nothing. Its rows have norm 1, so a clip norm of
# 1 is public. Signs are left out, because the sum of a column has to state how often it is used.


def text_classifier(epsilon, class_weight):
    return make_pipeline(
        HashingVectorizer(n_features=4096, alternate_sign=False),
        DPRidgeClassifier(
            classes=["ordinary", "unwanted"],
            class_weight=class_weight,
            clip_norm=1.0,
            epsilon=epsilon,
        ),
    )


print(check_pipeline(text_classifier(1.0, "balanced")))
print(text_classifier(1.0, "balanced")[-1].plan(4000, 4096))

# %%
# Balanced accuracy is the mean over the classes of the fraction that is recognised. It is .5 if the
# answer is always the same; without class weights the fit warns of that. Scores on held-out
# messages may be shown, because these are made up.
epsilons = [0.5, 1.0, 3.0, 10.0]
fig, ax = plt.subplots()
for class_weight in (None, "balanced"):
    scores = []
    for epsilon in epsilons:
        model = text_classifier(epsilon, class_weight).fit(messages[train], y[train])
        scores.append(balanced_accuracy_score(y[test], model.predict(messages[test])))
    ax.plot(epsilons, scores, "o-", label=f"class_weight={class_weight!r}")
ax.axhline(0.5, color="0.3", linestyle=":", label="a guess")
ax.set(xscale="log", ylabel="balanced accuracy", ylim=(0.45, 1.0))
ax.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
ax.minorticks_off()
ax.set_xlabel("privacy budget epsilon (delta = 1e-6)")
ax.set_title("Rare classes need weights, which are free")
ax.legend()
plt.show()

# %%
# Hashing the public list of words shows which words belong to a coefficient (several may share a
# column).
hashed, regression = model[0], model[-1]
weights = hashed.transform(words) @ regression.coef_[0]
order = np.argsort(weights)
print("unwanted:", *words[order[:-9:-1]])
print("ordinary:", *words[order[:8]])
print(regression.privacy_report())

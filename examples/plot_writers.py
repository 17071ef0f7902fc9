"""
Can each writer have a model of their own, and keep their marks?
================================================================

Which digits are easy to read? Every writer marks a few images, and no two writers agree: what is
easy depends on one's own hand, through a few properties of the shape. A model for each writer needs
more marks than anyone makes, and marks are private.

`DPPersonalizedClassifier` learns the properties that matter, with privacy for all marks of a writer
together, and each writer's own preference stays on the writer's device.
"""

# %%
# Real images (scikit-learn's digits, reduced to 4 x 4 blocks), simulated writers: a
# writer's preference is a combination of two shapes, and each writer marks 24 images.
import importlib.util
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegressionCV

from skdp.regression import DPPersonalizedClassifier

rng = np.random.default_rng(0)
images = load_digits().images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
images = (images - images.mean(axis=0)) / images.std(axis=0).clip(1.0)  # digits are public

n_writers, n_marks = 1000, 24
shapes = np.linalg.qr(rng.standard_normal((16, 2)))[0]
preferences = 2.0 * rng.standard_normal((n_writers, 2)) @ shapes.T
writer = np.repeat(np.arange(n_writers), n_marks)
X = images[rng.integers(0, len(images), len(writer))]
chance = 1 / (1 + np.exp(-np.sum(X * preferences[writer], axis=1)))
y = np.where(rng.random(len(writer)) < chance, "easy", "hard")
test = np.arange(len(writer)) % n_marks >= 16  # the last 8 marks of each writer are kept back
train = ~test
best = np.mean(np.where(chance > 0.5, "easy", "hard")[test] == y[test])

# %%
# Without privacy: some writers alone (the first 100, which is enough to see it), and one model for
# all.
correct = []
for j in range(100):
    rows, held = (writer == j) & train, (writer == j) & test
    values, counts = np.unique(y[rows], return_counts=True)
    if counts.min() < 4 or len(values) < 2:
        correct.append(np.mean(y[held] == values[np.argmax(counts)]))
        continue
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about coming changes in scikit-learn
        alone = LogisticRegressionCV(Cs=[0.01, 0.1, 1.0], cv=4).fit(X[rows], y[rows])
    correct.append(alone.score(X[held], y[held]))
score_alone = float(np.mean(correct))
score_together = max(np.mean(y[test] == "easy"), np.mean(y[test] == "hard"))

# %%
# Private fits. The list of classes is public, so it is passed.
epsilons = [0.5, 1, 2, 4, 8]
personal, published = [], []
for epsilon in epsilons:
    model = DPPersonalizedClassifier(n_components=2, epsilon=epsilon, classes=["easy", "hard"])
    model.fit(X[train], y[train], groups=writer[train])
    personal.append(model.score(X[test], y[test], groups=writer[test]))
    published.append(model.public_copy().score(X[test], y[test]))

print("accuracy on marks kept back")
print(f"{'best possible':<36}{best:>8.3f}")
print(f"{'each writer alone, not private':<36}{score_alone:>8.3f}")
print(f"{'the same answer for all':<36}{score_together:>8.3f}")
print(f"{'epsilon':>12}  {'own model':>9}  {'published model':>16}")
for epsilon, own, shared in zip(epsilons, personal, published, strict=True):
    print(f"{epsilon:>12}  {own:>9.3f}  {shared:>16.3f}")

# %%
# A device needs the published object alone. It fits its own model there, and sends nothing.
head = model.make_head().fit(X[writer == 3], y[writer == 3])
print()
print("writer 3 on its own device:", head.predict(X[writer == 3][:5]))

# %%
# What may be published is ``model.public_copy()``: the two shapes, the global model and the
# receipt. A writer's model, and the scores above, come from that writer's marks: they are not for
# others.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(epsilons, personal, "o-", label="personalised, private")
    axes.semilogx(epsilons, published, "s-", label="published global model, private")
    axes.axhline(best, color="0.6", linestyle=":", label="best possible")
    axes.axhline(score_alone, color="0.3", linestyle="--", label="alone, not private")
    axes.axhline(score_together, color="0.6", linestyle="-.", label="the same answer for all")
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget epsilon of one writer (delta = 1e-6)")
    axes.set_ylabel("accuracy on marks kept back")
    axes.set_title(f"{n_writers} writers, {n_marks} marks each")
    axes.set_ylim(0.3, 0.85)
    axes.legend(loc="lower right", fontsize="small", ncols=2)
    figure.savefig("writers.png", dpi=150)
    print("\nwrote writers.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

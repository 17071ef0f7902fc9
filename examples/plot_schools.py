"""
Can schools share what they know without showing their pupils?
==============================================================

Exam results of pupils in 700 schools, simulated with realistic sizes. How results depend on a
pupil's background differs from school to school, but along two common directions only. A school
alone has too few pupils to find its own dependence; one model for all ignores the differences.

`DPPersonalizedRegressor` learns the two directions with privacy for all pupils of a school
together, and fits each school's own model on top of them.
"""

# %%
# Sixteen features of a pupil (earlier results, hours, distance, ...), some of them correlated and
# of unequal spread. School sizes are log-normal: half of the schools have fewer than 22 pupils.
import importlib.util

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score

from skdp.regression import DPPersonalizedRegressor

rng = np.random.default_rng(0)
n_schools, n_features = 700, 16
sizes = np.clip(np.exp(3.1 + 0.7 * rng.standard_normal(n_schools)), 6, 150).astype(int)
school = np.repeat(np.arange(n_schools), sizes)
axes = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
spread = np.linspace(1.5, 0.4, n_features)
X = rng.standard_normal((len(school), n_features)) * spread @ axes

common = rng.standard_normal(n_features) / 4
directions = np.linalg.qr(rng.standard_normal((n_features, 2)))[0]
slopes = common + rng.standard_normal((n_schools, 2)) @ directions.T
level = 0.3 * rng.standard_normal(n_schools)
y = np.sum(X * slopes[school], axis=1) + level[school] + 0.8 * rng.standard_normal(len(school))

# A third of each school's pupils is kept back.
test = rng.random(len(school)) < 1 / 3
train = ~test

# %%
# Two comparisons without privacy: schools alone (the first 200 are enough to see it), and one model
# for all.
grid = np.logspace(-1, 3, 9)
alone = np.zeros(len(school))
for j in range(200):
    rows, held = (school == j) & train, (school == j) & test
    if rows.sum() >= 3 and held.any():
        alone[held] = RidgeCV(grid).fit(X[rows], y[rows]).predict(X[held])
together = RidgeCV(grid).fit(X[train], y[train]).predict(X[test])
seen = test & (school < 200)
score_alone, score_together = r2_score(y[seen], alone[seen]), r2_score(y[test], together)

# %%
# Private fits. The privacy unit is a school, with everything that is known of its pupils. Two
# shared dimensions, those of the differences; what all have in common is learned before them.
epsilons = [0.5, 1, 2, 4, 8]
personal, published = [], []
for epsilon in epsilons:
    model = DPPersonalizedRegressor(n_components=2, epsilon=epsilon)
    model.fit(X[train], y[train], groups=school[train])
    personal.append(model.score(X[test], y[test], groups=school[test]))
    published.append(model.public_copy().score(X[test], y[test]))

print("R2 on pupils kept back")
print(f"{'each school alone, not private':<40}{score_alone:>8.3f}")
print(f"{'one model for all, not private':<40}{score_together:>8.3f}")
print(f"{'epsilon':>12}  {'own model':>9}  {'published model':>16}")
for epsilon, own, shared in zip(epsilons, personal, published, strict=True):
    print(f"{epsilon:>12}  {own:>9.3f}  {shared:>16.3f}")

# %%
# What may be published is ``model.public_copy()``: the shared directions and the global model, with
# the guarantee in its report. A school's own model goes to that school alone; the scores
# above come from private rows, and are shown because these pupils are simulated.
public = model.public_copy()
print()
print(public.privacy_report())

# %%
# A school that joins later needs only the published object and its own rows. It costs no budget:
# the model is fitted on the school's own computer.
newcomer = public.make_head().fit(X[school == 0], y[school == 0])
print()
print("a new school's own slopes, first four:", newcomer.coef_[:4].round(2))

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(epsilons, personal, "o-", label="personalised, private")
    axes.semilogx(epsilons, published, "s-", label="published global model, private")
    axes.axhline(score_alone, color="0.3", linestyle="--", label="alone, not private")
    axes.axhline(score_together, color="0.6", linestyle=":", label="one model for all, not private")
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget epsilon of one school (delta = 1e-6)")
    axes.set_ylabel("R2 on pupils kept back")
    axes.set_title(f"{n_schools} schools, {len(school)} pupils, one fit each")
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", fontsize="small", ncols=2)
    figure.savefig("schools.png", dpi=150)
    print("\nwrote schools.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

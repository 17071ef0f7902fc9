"""
Can a whole pipeline be private, from scaling to prediction?
============================================================

A pipeline is as private as its weakest step. A scaler that was fitted on the rows, or a regression
that is trained behind a private PCA, has used private rows without noise, and the receipt of the
step between them does not cover that. `check_pipeline` finds such steps before any data are seen.

Here the leaky steps are replaced by private ones, one search chooses between them, and one receipt
holds for everything.
"""

# %%
# Ten thousand people, 30 measurements in units from hundredths to thousands, and an outcome that
# depends on four factors behind them. Simulated: scores on people kept back may be shown.
import importlib.util

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdp import DPRidge, DPTruncatedSVD, PrivacyLedger, check_pipeline
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.preprocessing import DPStandardScaler

rng = np.random.default_rng(0)
n, n_features = 12_000, 30
factors = rng.standard_normal((n, 4))
X = factors @ rng.standard_normal((4, n_features)) + 0.7 * rng.standard_normal((n, n_features))
units = 10.0 ** rng.uniform(-2, 3, n_features)
X = units * (X + 3 * rng.standard_normal(n_features))
y = factors @ [1.0, -0.6, 0.4, 0.2] + 0.4 * rng.standard_normal(n)
train, test = slice(0, 10_000), slice(10_000, n)

# %%
# What many would write: only the step in the middle is private.
leaky = make_pipeline(StandardScaler(), DPTruncatedSVD(4), Ridge())
print(check_pipeline(leaky))

# %%
# The same with private steps. A standardised row has a norm near the root of 30, so a clip norm of
# 8 scales few of them down; the outcome is known to lie within 4 of zero. These numbers are public
# knowledge, and cost nothing.


def private_pipeline(n_components=4, epsilon=1.0):
    return make_pipeline(
        DPStandardScaler(epsilon=epsilon),
        DPTruncatedSVD(n_components, epsilon=epsilon, clip_norm=8.0),
        DPRidge(epsilon=epsilon, clip_norm=8.0, target_bounds=(-4.0, 4.0)),
    )


print()
print(check_pipeline(private_pipeline()))

# %%
# The steps have a budget each, and a ledger adds them up: three fits of epsilon 0.5 are one
# guarantee of 0.9 for the whole pipeline, not of 1.5.
with PrivacyLedger(epsilon=1.0, delta=1e-6) as ledger:
    model = private_pipeline(epsilon=0.5).fit(X[train], y[train])
print()
print(ledger.report())
print(f"R2 on people kept back: {model.score(X[test], y[test]):.3f}")

# %%
# How many components? The search fits and scores every candidate privately, and splits one total
# budget over them: its receipt covers the tuning, the scaling, the components and the coefficients.
scorer = make_private_scorer("squared_error", (0.0, 4.0))
sizes = [2, 4, 8]


def tuned(epsilon):
    grid = {"dptruncatedsvd__n_components": sizes}
    return DPGridSearchCV(private_pipeline(), grid, scorer, epsilon=epsilon)


search = tuned(2.0)
assert check_pipeline(search).ok
search.fit(X[train], y[train])
print()
print("chosen:", search.best_params_)
losses = (-search.cv_results_["mean_test_score"]).round(3).tolist()
print("released losses:", dict(zip(sizes, losses, strict=True)))
print(search.privacy_report())

# %%
# Against ridge regression without privacy.
exact = make_pipeline(StandardScaler(), Ridge()).fit(X[train], y[train])
ceiling = exact.score(X[test], y[test])
epsilons = [0.25, 0.5, 1.0, 2.0, 4.0]
scores = [
    [tuned(epsilon).fit(X[train], y[train]).score(X[test], y[test]) for _ in range(2)]
    for epsilon in epsilons
]
print()
print("total epsilon of the tuned pipeline, and R2 on people kept back (two runs)")
for epsilon, runs in zip(epsilons, scores, strict=True):
    print(f"{epsilon:>8}  " + "  ".join(f"{score:.3f}" for score in sorted(runs)))
print(f"{'no noise':>8}  {ceiling:.3f}")

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(
        epsilons, np.median(scores, axis=1), "o-", label="scaled, reduced, tuned: private"
    )
    axes.fill_between(epsilons, np.min(scores, axis=1), np.max(scores, axis=1), alpha=0.2)
    axes.axhline(ceiling, color="0.3", linestyle="--", label="scaled ridge, without privacy")
    axes.axhline(0, color="0.3", linestyle=":", label="predicting the mean")
    axes.set_ylim(min(-0.03, np.min(scores)), 1)
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget epsilon of everything together (delta = 1e-6)")
    axes.set_ylabel("R2 on people kept back")
    axes.set_title("10,000 people, 30 measurements")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig("private_pipeline.png", dpi=150)
    print("\nwrote private_pipeline.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

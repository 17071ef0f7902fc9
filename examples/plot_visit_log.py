"""
One person, many visits
=======================

A clinic's log has a row for each visit. Half of the patients come once or twice, a few come every
week. A guarantee for one visit protects the former and not the latter; with
``privacy_unit="group"`` all visits of a patient are one unit.

What it costs is shown for a regression of the length of a visit on what is known of it, next to two
other ways of protecting a patient: the row unit at a budget that is divided by the largest number
of visits, and one random visit of each patient.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from skdp import DPRidge
from skdp.privacy import mu_from_epsilon_delta
from skdp.privacy.accounting.losses import epsilon_from_mu_delta

# %%
# A log of 3000 patients. Visits of one patient are alike.
rng = np.random.default_rng(0)
n_patients, most = 3000, 100
visits = np.clip(np.rint(rng.lognormal(1.2, 1.1, n_patients)), 1, most).astype(int)
patient = np.repeat(np.arange(n_patients), visits)
X = 0.6 * rng.standard_normal((n_patients, 6))[patient] + rng.standard_normal((len(patient), 6))
y = X @ [3.0, 2.0, -2.0, 1.0, 0.0, 0.0] + 30 + 2 * rng.standard_normal(len(X))
print(f"{len(X)} visits; the median patient has {np.median(visits):.0f}, one has {visits.max()}")

# %%
# All visits of a patient are protected together, as the receipt states.
model = DPRidge(epsilon=1.0, privacy_unit="group").fit(X, y, groups=patient)
print(model.privacy_spent_.statement())
print(f"R2 of all visits: {model.score(X, y):.2f}")

# %%
# The same guarantee by the row unit: divide mu by the largest number of visits, or drop all visits
# of a patient but one.
shuffled = rng.permutation(len(X))
one_each = shuffled[np.unique(patient[shuffled], return_index=True)[1]]


def ways(epsilon):
    """Return R2 of three ways to protect a patient."""
    mu = mu_from_epsilon_delta(epsilon, 1e-6)
    whole = DPRidge(epsilon=epsilon, privacy_unit="group").fit(X, y, groups=patient)
    single = DPRidge(epsilon=epsilon).fit(X[one_each], y[one_each])
    rows = DPRidge(epsilon=epsilon_from_mu_delta(mu / most, 1e-6)).fit(X, y)
    return [max(0.0, found.score(X, y)) for found in (whole, single, rows)]


# %%
# Dividing the budget loses nearly everything. One visit of each patient does well if the noise is
# the main source of error.
warnings.simplefilter("ignore", UserWarning)  # of fits that see next to nothing
epsilons = [0.25, 0.5, 1.0, 2.0, 4.0]
scores = np.array([np.median([ways(each) for _ in range(3)], axis=0) for each in epsilons])
names = ["all visits of a patient, group unit", "one visit of each", f"budget over {most}"]
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, line, marker in zip(names, scores.T, "os^", strict=True):
    axes.semilogx(epsilons, line, marker=marker, label=name)
axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
axes.minorticks_off()
axes.set_xlabel("epsilon for all visits of one patient (delta = 1e-6)")
axes.set_ylabel("R2 of all visits, median of 3 fits, at least 0")
axes.set_title(f"{n_patients} patients, {len(X)} visits")
axes.set_ylim(0, 1)
axes.legend()
plt.show()

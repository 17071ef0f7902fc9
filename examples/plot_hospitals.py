"""
Can sixty hospitals find common patterns without pooling their patients?
=========================================================================

Each hospital keeps its rows. In every step it sends one array of integers that looks random: its
contribution, a part of the noise, and masks that cancel in the sum. The server sees the sum alone,
and the sum is private for each patient. `FederatedPowerMethod` fits an ordinary `DPTruncatedSVD`
that way.
"""

# %%
# Sixty hospitals, 12,000 patients, forty measurements, four patterns. Hospitals differ: each sees
# mostly one kind of patient, so that none of them finds all patterns in its own rows.
import importlib.util

import numpy as np

from skdp import DPTruncatedSVD
from skdp.federated import (
    AggregationConfig,
    FederatedPowerMethod,
    PowerMethodClient,
    UnmaskedAggregator,
    simulated_aggregator,
)

rng = np.random.default_rng(0)
n_hospitals, n_features, n_patterns = 60, 40, 4
patterns = np.linalg.qr(rng.standard_normal((n_features, n_patterns)))[0].T


def patients(hospital, n=200):
    """Rows of norm near 1; four of five patients show the pattern their hospital is known for."""
    usual = hospital % n_patterns
    kind = np.where(rng.random(n) < 0.8, usual, rng.integers(n_patterns, size=n))
    noise = 0.08 * rng.standard_normal((n, n_features))
    return rng.choice([-1, 1], (n, 1)) * 0.8 * patterns[kind] + noise


hospitals = [patients(hospital) for hospital in range(n_hospitals)]
pooled = np.vstack(hospitals)


def captured(svd):
    """Share of all patients' squares in the fitted subspace."""
    return float(np.sum((pooled @ svd.components_.T) ** 2) / np.sum(pooled**2))


# %%
# The hospitals agree on public numbers: how many they are, how many may collude with the server
# (two), and how many may be offline in a step (three). Each hospital holds its own budget, checks
# every request against it, and writes its own ledger.
config = AggregationConfig(n_hospitals, n_colluders=2, n_dropouts=3)
offline = {7, 23, 41}


def fit_together(epsilon, masked=False):
    """One decentralised fit; three hospitals are offline all the time."""
    clients = [PowerMethodClient(rows, config, epsilon=epsilon) for rows in hospitals]
    answers = [client.respond for client in clients]
    if masked:  # the real protocol, all parties in this process
        sums = simulated_aggregator(
            answers, config, lost=lambda hospital, kind: hospital in offline
        )
    else:  # the same sums without masks: right for a simulation, and many times faster
        sums = UnmaskedAggregator([answers[i] for i in range(n_hospitals) if i not in offline])
    estimator = DPTruncatedSVD(n_patterns, epsilon=epsilon, clip_norm=1.0)
    return FederatedPowerMethod(estimator, config).fit(sums, n_features=n_features), clients


epsilons = [0.03, 0.1, 0.3, 1.0, 3.0]
together, alone, central = [], [], []
for epsilon in epsilons:
    svd, clients = fit_together(epsilon, masked=epsilon == 1.0)
    together.append(captured(svd))
    one = DPTruncatedSVD(n_patterns, epsilon=epsilon, clip_norm=1.0)
    alone.append(np.mean([captured(one.fit(rows)) for rows in hospitals[:4]]))
    central.append(captured(one.fit(pooled)))
best = float(np.sum(np.linalg.svd(pooled, compute_uv=False)[:n_patterns] ** 2) / np.sum(pooled**2))

# %%
# The fit is that of the pooled rows, with a little more noise: what the two colluders know of the
# noise, and what the three hospitals that were offline would have added, is added by the others. A
# hospital on its own finds little, private or not.
print(f"captured squares of all {len(pooled)} patients (best {best:.3f})")
print(f"{'epsilon':>8}  {'together':>8}  {'pooled':>8}  {'alone':>8}")
for row in zip(epsilons, together, central, alone, strict=True):
    print(f"{row[0]:>8}  {row[1]:>8.3f}  {row[2]:>8.3f}  {row[3]:>8.3f}")
print()
print("What everybody may see:", svd.privacy_spent_)
print("What hospital 0 signed for:", clients[0].close(), f"in {len(clients[0].releases_)} lines")
print("What hospital 7, offline, answered:", clients[7].releases_)

# %%
# The same as a picture.
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(epsilons, central, "s--", label="rows pooled (central fit)")
    axes.semilogx(epsilons, together, "o-", label="60 hospitals, nothing pooled")
    axes.semilogx(epsilons, alone, "^:", label="one hospital alone")
    axes.axhline(best, color="0.3", linestyle="--", label="not private")
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_xlabel("epsilon for one patient (delta = 1e-6)")
    axes.set_ylabel("captured squares, all patients")
    axes.set_title("60 hospitals, 2 may collude, 3 are offline")
    axes.legend(loc="center left", bbox_to_anchor=(0, 0.47))
    figure.savefig("hospitals.png", dpi=150)
    print("\nwrote hospitals.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

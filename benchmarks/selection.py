"""Private searches over 8 and over 100 candidates, at one total (epsilon, delta) = (1, 1e-6).

Run: ``python benchmarks/selection.py [repeats]``. The task is a low-rank regression
(`DPTraceRegressor`); candidates are ranks, numbers of steps and clip levels. Errors are excess
losses ||M^ - M||_F^2 / ||M||_F^2 (the zero matrix has 1), medians over fresh noise and data.

- "not private choice": every candidate is fitted with the whole (1, 1e-6), and the best is chosen
  by its true error: a bound on what any search can reach, which no private procedure attains.
- "typical candidate": the median candidate with the whole (1, 1e-6): what not tuning costs.
- "compose", "random stopping": `DPGridSearchCV`, with everything inside (1, 1e-6).
"""

import math
import sys
import time
import warnings

import numpy as np
from sklearn.model_selection import ParameterGrid

from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.privacy import epsilon_from_mu_delta
from skdp.privacy.selection import plan_selection
from skdp.regression import DPTraceRegressor

EPSILON, DELTA = 1.0, 1e-6
SHAPE, VALUES, NOISE, ROWS = (8, 8), (1.0, 0.7, 0.5), 0.3, 6000
GRIDS = {
    8: {"rank": [1, 2, 4, 8], "max_iter": [1, 8]},
    100: {"rank": [1, 2, 3, 4, 8], "max_iter": [1, 2, 4, 8, 16], "clip_level": [0.3, 1, 3, 10]},
}
# The square of a target is 1.8 on average.
SCORER = make_private_scorer("squared_error", (0.0, 4.0))


def problem(seed):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((d, len(VALUES))))[0] for d in SHAPE)
    M = (U * np.array(VALUES)) @ V.T
    X = rng.standard_normal((ROWS, *SHAPE))
    return M, X, np.einsum("ijk,jk->i", X, M) + NOISE * rng.standard_normal(ROWS)


def error(model, M):
    return float(np.linalg.norm(model.coef_ - M) ** 2 / np.linalg.norm(M) ** 2)


def table_of_plans():
    print(f"what a run may spend at a total of ({EPSILON}, {DELTA}): epsilon; chance of the best")
    for n in GRIDS:
        line = []
        for strategy, law in (
            ("compose", "auto"),
            ("random_stopping", "geometric"),
            ("random_stopping", "logarithmic"),
            ("random_stopping", "poisson"),
        ):
            plan = plan_selection(EPSILON, DELTA, n, strategy=strategy, law=law)
            epsilon = epsilon_from_mu_delta(plan.run.value, DELTA)
            line.append(f"{plan.law or 'all'} {epsilon:.3f} P {plan.chance:.2f}")
        auto = plan_selection(EPSILON, DELTA, n)
        print(f"{n:>4} candidates: {'; '.join(line)}; auto: {auto.strategy} {auto.law or ''}")


def searches(grid):
    def search(strategy, **params):
        base = DPTraceRegressor(design=1.0)
        return DPGridSearchCV(base, grid, SCORER, epsilon=EPSILON, strategy=strategy, **params)

    return {
        "compose": search("compose"),
        "random stopping, geometric": search("random_stopping", law="geometric"),
        "random stopping, geometric, 3 n": search(
            "random_stopping", law="geometric", expected_runs=3.0 * len(ParameterGrid(grid))
        ),
        "auto": search("auto"),
    }


def quality(n_candidates, repeats):
    grid = GRIDS[n_candidates]
    found = {}
    for seed in range(repeats):
        M, X, y = problem(seed)
        full = [
            error(DPTraceRegressor(design=1.0, epsilon=EPSILON, **params).fit(X, y), M)
            for params in ParameterGrid(grid)
        ]
        found.setdefault("not private choice", []).append((min(full), math.nan))
        found.setdefault("typical candidate", []).append((float(np.median(full)), math.nan))
        for name, search in searches(grid).items():
            start = time.process_time()
            search.fit(X, y)
            seconds = time.process_time() - start
            found.setdefault(name, []).append((error(search.best_estimator_, M), seconds))
    for name, values in found.items():
        errors, seconds = np.array(values).T
        low, middle, high = np.quantile(errors, [0.1, 0.5, 0.9])
        spread = f"{middle:.4f} ({low:.4f} to {high:.4f})"
        cost = "" if np.isnan(seconds).any() else f"{np.median(seconds):7.2f} CPU s"
        print(f"{n_candidates:>4} {name:<32} {spread} {cost}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    table_of_plans()
    for n in GRIDS:
        quality(n, int(sys.argv[1]) if len(sys.argv) > 1 else 9)

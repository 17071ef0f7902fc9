"""Private searches over 8 and over 100 candidates, at one total (epsilon, delta) = (1, 1e-6).

Run: ``python benchmarks/selection.py [repeats]``. The task is a low-rank regression
(`DPTraceRegressor`); candidates are ranks, numbers of steps and clip levels. Errors are excess
losses ||M^ - M||_F^2 / ||M||_F^2 (the zero matrix has 1), medians over fresh noise and data.

- "not private choice": every candidate is fitted with the whole (1, 1e-6), and the best is chosen
  by its true error: a bound on what any search can reach, which no private procedure attains.
- "typical candidate": the median candidate with the whole (1, 1e-6): what not tuning costs.
- "compose", "random stopping": `DPGridSearchCV`, with everything inside (1, 1e-6).
"""

import sys
import time
import warnings

import numpy as np
from report import show, shown
from sklearn.model_selection import ParameterGrid

from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.model_selection.selection_laws import plan_selection
from skdp.privacy import epsilon_from_mu_delta
from skdp.regression import DPTraceRegressor

EPSILON, DELTA = 1.0, 1e-6
PUBLIC = {"measurement_covariance": 1.0, "epsilon": EPSILON}
SHAPE, VALUES, NOISE, ROWS = (8, 8), (1.0, 0.7, 0.5), 0.3, 6000
GRIDS = {
    8: {"rank": [1, 2, 4, 8], "max_iter": [1, 8]},
    100: {
        "rank": [1, 2, 3, 4, 8],
        "max_iter": [1, 2, 4, 8, 16],
        "gradient_clip_factor": [0.3, 1, 3, 10],
    },
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
    rows = []
    for n in GRIDS:
        auto = plan_selection(EPSILON, DELTA, n)
        for strategy in ("compose", "random_stopping"):
            plan = plan_selection(EPSILON, DELTA, n, strategy=strategy)
            epsilon = epsilon_from_mu_delta(plan.run.value, DELTA)
            chosen = "yes" if auto.strategy == plan.strategy else ""
            rows.append([n, strategy, f"{epsilon:.3f}", f"{plan.chance:.2f}", chosen])
    title = f"what one run may spend at a total of ({EPSILON:g}, {DELTA:g})"
    show(title, ["candidates", "strategy", "epsilon of a run", "chance of the best", "auto"], rows)


def searches(grid):
    def search(strategy, **params):
        base = DPTraceRegressor(measurement_covariance=1.0)
        return DPGridSearchCV(base, grid, SCORER, epsilon=EPSILON, strategy=strategy, **params)

    return {
        "compose": search("compose"),
        "random stopping": search("random_stopping"),
        "random stopping, 3 n": search(
            "random_stopping", mean_n_runs=3.0 * len(ParameterGrid(grid))
        ),
        "auto": search("auto"),
    }


def cpu_seconds(function):
    """Return CPU seconds and the result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def quality(n_candidates, repeats):
    grid = GRIDS[n_candidates]
    errors, ratios = {}, {}
    for seed in range(repeats):
        M, X, y = problem(seed)
        plain, full = cpu_seconds(
            lambda: [  # with the whole budget each: what no private search may do
                error(DPTraceRegressor(**PUBLIC, **params).fit(X, y), M)  # noqa: B023
                for params in ParameterGrid(grid)
            ]
        )
        errors.setdefault("not private choice", []).append(min(full))
        errors.setdefault("typical candidate", []).append(float(np.median(full)))
        for name, search in searches(grid).items():
            seconds, fitted = cpu_seconds(lambda: search.fit(X, y))  # noqa: B023
            errors.setdefault(name, []).append(error(fitted.best_estimator_, M))
            ratios.setdefault(name, []).append(seconds / plain)
    best = np.median(errors["not private choice"])
    rows = []
    for name, values in errors.items():
        low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
        cost = f"{np.median(ratios[name]):.2f}" if name in ratios else ""
        row = [f"{middle:.4f}", f"{low:.4f} to {high:.4f}", f"{middle / best:.1f}", cost]
        rows.append([name, *row])
    show(
        f"excess loss of the final model, {n_candidates} candidates, {repeats} repeats",
        ["search", "median", "10-90%", "/ not private choice", "CPU / all candidates once"],
        rows,
        "The zero matrix has 1. All of a search is inside (1, 1e-6); 'not private choice' and "
        "'typical candidate' spend that on every candidate, and choose by the true error.",
    )


def tables(full):
    """Tables for ``python -m benchmarks``; the quick ones have the small grid alone."""
    yield from shown(table_of_plans)
    for n in GRIDS if full else [min(GRIDS)]:
        yield from shown(lambda n=n: quality(n, 9 if full else 5))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    table_of_plans()
    for n in GRIDS:
        quality(n, int(sys.argv[1]) if len(sys.argv) > 1 else 9)

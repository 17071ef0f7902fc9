"""Default fits on tables nobody prepared: scales, R2, accuracy and captured variance, and warnings.

Run: ``python benchmarks/defaults.py``. Every fit has default parameters but for epsilon, on columns
as they came. Next to it "oracle scale": the same estimator told exact means and scales (which no
private fit knows), and the model without privacy. A level is absurd if it is more than 8 times
below the median norm (about the released mean) or above the 0.9 quantile: in between it is a
choice, for the noise. A result is lost if it has less than half of what the oracle scale brings,
a scale of a column if it is more than 8 times off. "silent" counts those without a warning.
"""

import math
import warnings

import numpy as np
from report import show, shown
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import StandardScaler

from skdp import DPPCA, DPIncrementalPCA, DPRidge, DPRidgeClassifier, DPTruncatedSVD
from skdp.answer import Answer
from skdp.datasets import make_table
from skdp.exceptions import UtilityWarning
from skdp.preprocessing import DPStandardScaler
from skdp.solvers.median_search import find_scale

EPSILONS = (0.5, 1.0, 3.0)
KINDS_OF_SUBSPACE = (DPPCA, DPTruncatedSVD, DPIncrementalPCA)
LOADERS = {
    "iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer,
    "diabetes": lambda **kw: load_diabetes(scaled=False, **kw), "digits": load_digits,
}  # fmt: skip


def data_sets():
    """Yield (name, X, y) of bundled sets and of synthetic tables."""
    for name, load in LOADERS.items():
        yield name, *load(return_X_y=True)
    for n in (500, 2000, 20_000):
        yield f"synthetic table, {n} rows", *make_table(n, random_state=0)


def fitted(model, *data):
    """Return (fitted model, whether it warned of its result)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data)
    return model, any(issubclass(w.category, UtilityWarning) for w in caught)


def captured(components, X):
    return float(np.sum((X @ components.T) ** 2) / np.sum(X**2))


def off(level, rows):
    """Return whether a level is absurd for some rows."""
    lengths = np.linalg.norm(rows, axis=1)
    return not np.median(lengths) / 8 <= level <= 8 * np.quantile(lengths, 0.9)


def place(model):
    """Return what rows were cut about: a mean, if a search for the clip norm followed it."""
    searched = any(line.name == "row_sum" for line in model.releases_)
    return getattr(model, "mean_", 0.0) if searched else 0.0


def silent(bad, fits):
    """Return the share of bad fits, and of those that gave no warning."""
    unsaid = [b and not doubt for b, (_, doubt) in zip(bad, fits, strict=True)]
    return float(np.mean(bad)), float(np.mean(unsaid))


def subspaces(repeats, kind):
    """One decomposition: share of the variance (or of the squares) that two components capture."""
    rows, centred = [], kind is not DPTruncatedSVD
    for name, X, _ in data_sets():
        mean = X.mean(axis=0) if centred else np.zeros(X.shape[1])
        Z, scores = X - mean, []
        best = captured(np.linalg.svd(Z, full_matrices=False)[2][:2], Z)
        known = {"clip_norm": np.quantile(np.linalg.norm(Z, axis=1), 0.9)}
        known |= {"center": mean} if centred else {}
        for epsilon in EPSILONS:
            fits = [fitted(kind(2, epsilon=epsilon), X) for _ in range(repeats)]
            told = [fitted(kind(2, epsilon=epsilon, **known), X)[0] for _ in range(repeats)]
            scores = [captured(model.components_, Z) for model, _ in fits]
            oracle = np.mean([captured(model.components_, Z) for model in told])
            about = [place(model) for model, _ in fits]
            absurd = [off(m.clip_norm_, X - c) for (m, _), c in zip(fits, about, strict=True)]
            lost = [score < oracle / 2 for score in scores]
            rows.append([
                name, epsilon, np.mean(scores), min(scores), oracle, best,
                *silent(absurd, fits), *silent(lost, fits), np.mean([doubt for _, doubt in fits]),
            ])  # fmt: skip
    head = [
        "data", "epsilon", "default", "worst", "oracle scale", "no privacy", "absurd",
        "absurd, silent", "lost", "lost, silent", "warned",
    ]  # fmt: skip
    title = f"{kind.__name__}: captured by two components, default fits, means of {repeats}"
    show(title, head, rows)


def read_outs(repeats):
    """DPRidge and DPRidgeClassifier: R2 and accuracy on the rows of the fit."""
    rows = []
    for name, X, y in data_sets():
        classes = None if len(np.unique(y)) > 20 else np.unique(y)
        Z = StandardScaler().fit_transform(X)
        plain = Ridge() if classes is None else RidgeClassifier()
        best = plain.fit(Z, y).score(Z, y)
        length = 1.2 * math.sqrt(X.shape[1])
        for epsilon in EPSILONS:
            if classes is None:
                given = {"target_bounds": (y.mean() - 2.5 * y.std(), y.mean() + 2.5 * y.std())}
                makes = (lambda **kw: DPRidge(**kw)), given
            else:
                makes = (lambda c=classes, **kw: DPRidgeClassifier(classes=c, **kw)), {}
            make, given = makes
            fits = [fitted(make(epsilon=epsilon), X, y) for _ in range(repeats)]
            told = [
                fitted(make(epsilon=epsilon, clip_norm=length, **given), Z, y)
                for _ in range(repeats)
            ]
            scores = [model.score(X, y) for model, _ in fits]
            oracle = np.median([model.score(Z, y) for model, _ in told])
            base = 0.0 if classes is None else np.max(np.mean(y[:, None] == classes, axis=0))
            lost = [score - base < (oracle - base) / 2 for score in scores]
            rows.append([
                name, epsilon, np.median(scores), min(scores), oracle, best, *silent(lost, fits),
                np.mean([doubt for _, doubt in fits]),
            ])  # fmt: skip
    head = [
        "data", "epsilon", "default", "worst", "oracle scale", "no privacy", "lost",
        "lost, silent", "warned",
    ]  # fmt: skip
    show(
        f"R2 or accuracy of default linear models on raw columns, medians of {repeats}", head, rows
    )


def scalers(repeats):
    """DPStandardScaler: the largest entry it makes, and scales that are far off."""
    rows = []
    for name, X, _ in data_sets():
        truth = X.std(axis=0)
        varies = truth > 0
        for epsilon in EPSILONS:
            fits = [fitted(DPStandardScaler(epsilon=epsilon), X) for _ in range(repeats)]
            largest = [np.abs(model.transform(X)).max() for model, _ in fits]
            near = [
                np.mean(np.abs(np.log2(model.scale_[varies] / truth[varies])) < 1)
                for model, _ in fits
            ]
            far = [
                bool(np.any(np.abs(np.log2(model.scale_[varies] / truth[varies])) > 3))
                for model, _ in fits
            ]
            doubts = np.mean([doubt for _, doubt in fits])
            rows.append([name, epsilon, max(largest), np.mean(near), *silent(far, fits), doubts])
    head = [
        "data", "epsilon", "largest entry", "scales within 2", "one is lost", "lost, silent",
        "warned",
    ]  # fmt: skip
    show(f"Default DPStandardScaler on raw columns, {repeats} fits", head, rows)


# -- the finder alone ------------------------------------------------------------------------------

KINDS = {
    "normal": lambda rng, n: np.linalg.norm(rng.standard_normal((n, 8)), axis=1),
    "Cauchy": lambda rng, n: np.abs(rng.standard_cauchy(n)),
    "lognormal": lambda rng, n: np.exp(2 * rng.standard_normal(n)),
    "discrete": lambda rng, n: rng.integers(1, 6, n).astype(float),
    "90% zeros": lambda rng, n: np.abs(rng.standard_normal(n)) * (rng.random(n) < 0.1),
}
SIZES = (50, 100, 200, 400, 800, 1600, 5000)
MU = 0.02774  # of a twentieth of (0.5, 1e-6)


def search(rng, numbers):
    """Return one search among some numbers, with the noise of its share."""
    kept = np.sort(numbers[numbers > 0])

    def rank(threshold, *, share):
        scale = 0.5 / (MU * math.sqrt(share))
        exact = np.searchsorted(kept, threshold, "right") - len(kept) / 2
        return Answer(np.asarray(exact + scale * rng.standard_normal()), scale)

    found = find_scale(rank, 1.0)
    wrong = kept.size and abs(math.log2(found.value / np.median(kept))) > 3
    return bool(wrong) and bool(found.found), not found.found


def finder(repeats):
    """The search for a scale: wrong without a warning, and warnings."""
    rng, rows = np.random.default_rng(0), []
    for kind, make in KINDS.items():
        cells = []
        for n in SIZES:
            runs = [search(rng, make(rng, n) * 2.0 ** rng.uniform(-40, 40)) for _ in range(repeats)]
            blind, doubt = np.mean(runs, axis=0)
            cells.append(f"{blind:.3f} / {doubt:.2f}")
        rows.append([kind, *cells])
    title = "Search for a scale between 1e-12 and 1e12 with a twentieth of epsilon 0.5: "
    show(title + f"wrong and unflagged / flagged, of {repeats}", ["numbers", *SIZES], rows)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    yield from shown(lambda: finder(2000 if full else 500))
    for kind in KINDS_OF_SUBSPACE:
        yield from shown(lambda kind=kind: subspaces(20, kind))
    for part in (read_outs, scalers):
        yield from shown(lambda part=part: part(20))


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    list(tables(True))

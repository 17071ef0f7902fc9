"""The checks once more with every public size at which a fit takes another way made tiny.

Beyond 1500 or 3000 features, or a block of rows, code runs that small test data never reach. The
list of such sizes is complete: a scan of the package finds the comparisons.
"""

import ast
import importlib
import sys
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

import skdp
from skdp.recommend import DPRecommender
from skdp.regression import DPPersonalizedRegressor
from skdp.testing import fixed_noise
from skdp.testing._transcripts import fresh, replaced
from tools import data, fit_checks, null_checks
from tools.fit_checks import ordinary

# Tiny fits show little; whether a fit says so is tested where the estimators are.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

PACKAGE = Path(skdp.__file__).parent
LARGE = 64  # smaller numbers are reached by ordinary test data
FOLDERS = (
    "base.py", "data", "decomposition", "federated", "graph", "model_selection", "preprocessing",
    "privacy/streams", "queries", "recommend", "regression", "solvers",
)  # fmt: skip
# Public sizes that decide on a way through the code, and what makes test data exceed them.
SIZES = {
    "BLOCK": 8, "CACHED": 4, "MEMORY": 64, "_JOINED": 4, "_TABLE": 3, "GRAM_FEATURES": 2,
    "MAX_ROWS": 3, "BLOCK_ROWS": 3, "_SMALL": 2, "MOST_DENSE": 2, "FEWEST_KEPT": 1,
    "_FEWEST_KEPT": 1, "MAX_FLIPS": 16.0, "_PAIRED": 2,
}  # fmt: skip
ROWS = 20  # are enough blocks of these sizes
# Names that stand in comparisons and decide on no way of a fit, with the reason.
OTHERS = {
    "_MOST_RECORDS": "refused beyond it", "_LARGEST_CHANGE": "refused beyond it",
    "_MOST_RULES": "refused beyond it", "_MOST_CONDITION": "refused beyond it",
    "_MOST_POINTS": "refused beyond it", "MAX_EPSILON": "a budget", "_ABSURD_EPSILON": "a budget",
    "1400.0": "a budget", "1000000.0": "a ratio of shares",
    "2 ** 31": "stands for no limit", "1022": "values, not sizes", "_FINE": "values, not sizes",
    "_FINE_CORE": "values, not sizes", "FARTHEST": "values, not sizes",
    "_ROUGH": "values, not sizes", "WHOLE": "values, not sizes", "_NARROW": "threads alone",
    "64": "letters of a name",
    "_LEAST_SIGNAL": "a route by public numbers, asked for by name in other ways",
    "100": "rows of made data", "2000": "points of a fixed net",
    "400": "eigenvectors of a matrix that was released",
    "1000": "columns of a public start", "MOST_NUMBERS": "a plan, which reads nothing private",
    "512": "a plan, which reads nothing private",
}  # fmt: skip


@cache
def bound_sizes():
    """Return (module, name) wherever a size is bound, also by an import of its name."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).as_posix().startswith(FOLDERS):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
    ours = [module for name, module in sys.modules.items() if name.startswith("skdp")]
    return [(module, name) for module in ours for name in SIZES if name in vars(module)]


@contextmanager
def small_sizes():
    with ExitStack() as stack:
        for module, name in bound_sizes():
            stack.enter_context(replaced(module, name, lambda _, value=SIZES[name]: value))
        stack.enter_context(replaced(data, "ROWS", lambda _: ROWS))
        yield


# -- the list is complete --------------------------------------------------------------------------


@cache
def modules():
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


def number(node):
    """The value of a number, or of a power of two; else None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) in (int, float) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        base, power = number(node.left), number(node.right)
        if base is not None and power is not None:
            return base**power if isinstance(node.op, ast.Pow) else base << power
    return None


def constants(tree):
    """Return {NAME: number} of a module, tuples of names too."""
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        names = getattr(target, "elts", [target])
        values = getattr(node.value, "elts", [node.value])
        for name, value in zip(names, values, strict=False):
            if isinstance(name, ast.Name) and name.id.isupper() and number(value) is not None:
                found[name.id] = number(value)
    return found


def compared(tree):
    """Yield what is compared in order, cut to, or divided into blocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            if any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops):
                yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max", "np.clip"):
            yield from node.args
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            yield from (node.left, node.right)


def large_sizes(tree, known):
    for part in compared(tree):
        for node in ast.walk(part):
            value = known.get(node.id) if isinstance(node, ast.Name) else number(node)
            if value is not None and LARGE <= abs(value) < 1e13:
                yield ast.unparse(node)


@pytest.mark.thorough
def test_every_public_size_is_known():
    trees = modules()
    known = {name: value for _, tree in trees for name, value in constants(tree).items()}
    found = {}
    for path, tree in trees:
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith(FOLDERS):
            for name in large_sizes(tree, known | constants(tree)):
                found.setdefault(name, set()).add(place)
    unknown = {name: places for name, places in found.items() if name not in SIZES | OTHERS}
    assert not unknown, "make them tiny in SIZES, or give the reason in OTHERS"
    found["_FEWEST_KEPT"] = {"regression"}  # too small to be seen: next to MOST_DENSE it is large
    assert set(SIZES) | set(OTHERS) <= set(found), "a size that nothing compares any more"


def test_a_new_size_is_seen():
    tree = ast.parse("_WIDE = 900\ndef f(d):\n    return d > _WIDE or min(d, 7000) > 2**12")
    assert {"_WIDE", "7000", "2 ** 12"} <= set(large_sizes(tree, constants(tree)))


# -- the checks ------------------------------------------------------------------------------------

WAYS = [
    skdp.DPPCA(n_components=1),
    skdp.DPPCA(n_components=1, clip_norm=1.0, center="none", adjacency="replace"),
    skdp.DPIncrementalPCA(1),
    skdp.DPIncrementalPCA(n_components=1, clip_norm=1.0, adjacency="replace", center="none"),
    skdp.DPTruncatedSVD(1),
    skdp.DPTruncatedSVD(clip_norm=1.0, adjacency="replace"),
    skdp.DPTruncatedSVD(algorithm="screened", clip_norm=1.0),
    skdp.DPRidge(clip_norm=1.0, target_bounds=(-1.0, 2.0), epsilon=30.0),
    skdp.DPRidgeClassifier(classes=[0, 1], class_weight="balanced"),
    skdp.DPRidgeClassifier(classes=[0, 1, 2], clip_norm=1.0, adjacency="replace"),
    skdp.DPLowRankFactorizer(1, sketch_size=2),
]
IN_BLOCKS = [
    DPRecommender(1),
    DPRecommender(1, privacy_unit="interaction"),
    DPPersonalizedRegressor(),
    skdp.DPTraceRegressor(
        1, matrix_shape=(2, 2), measurement_covariance=1.0, epsilon=25.0,
        shrink_singular_values=False,
        budget_split={
            "initialization": 0.1, "gradient_clip": 0.4, "gradients": 0.2, "center": 0.1,
            "count": 0.05, "calibration": 0.1,
        },
    ),
]  # fmt: skip
# Those that follow private values; parameters, inputs and refusals are asked without small sizes.
KEPT = [
    null_checks.check_null_release, fit_checks.check_receipt, fit_checks.check_worst_case_pair,
    null_checks.check_bad_rows, null_checks.check_pays_first, fit_checks.check_company,
    fit_checks.check_storage_form, null_checks.check_tiny_epsilon,
]  # fmt: skip


def lines(estimator):
    with fixed_noise(0):
        fitted = ordinary(estimator).fit(fresh(estimator))
    return [line.name for line in fitted.releases_]


@pytest.mark.deep
@pytest.mark.parametrize("estimator", WAYS[:-1], ids=repr)
def test_these_take_another_way(estimator):
    """Or, where a solver is named, the same way in other blocks."""
    before = lines(estimator)
    with small_sizes():
        after = lines(estimator)
    assert (before != after) or getattr(estimator, "algorithm", "") == "screened"


@pytest.mark.deep
@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("estimator", WAYS + IN_BLOCKS, ids=repr)
def test_keeps_its_promise_beyond_every_size(estimator, check):
    with small_sizes():
        check(type(estimator).__name__, estimator)


# What takes more columns, rows or budget than other ways have, and a line of what it releases.
LARGER = {
    "graded entries": (
        skdp.DPTruncatedSVD(privacy_unit="entry", algorithm="one_shot", epsilon=10.0, delta=0.0),
        5, 40, "full_matrix",
    ),
    "one sign": (skdp.DPTruncatedSVD(1, clip_norm=3.0, epsilon=30.0), 101, 40, "tangent_product"),
    "sums alone": (skdp.DPTruncatedSVD(1, clip_norm=3.0, epsilon=0.1), 101, 40, "row_sum"),
    "sparse columns": (skdp.DPRidge(epsilon=30.0), 101, 40, "regression_moments"),
    "two cuts": (skdp.DPRidge(epsilon=1000.0), 5, 100, "cut_gain"),
    "learnt design": (
        skdp.DPTraceRegressor(
            1, matrix_shape=(2, 2), fit_intercept=False, epsilon=100.0, max_iter=2,
            shrink_singular_values=False,
        ), 5, 40, "measurement_covariance_moments",
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("way", LARGER)
@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.__name__)
def test_keeps_its_promise_in_a_larger_way(way, check):
    estimator, columns, rows, line = LARGER[way]
    with replaced(data, "COLUMNS", lambda _: columns), replaced(data, "ROWS", lambda _: rows):
        assert line in lines(estimator)
        check(type(estimator).__name__, estimator)

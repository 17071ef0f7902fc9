"""Imports point one way, private data is read in one place, and pieces stay small.

The map is `ALLOWED`. Each rule is also shown to fail, on a module that breaks it.
"""

import ast
import graphlib
import sys
from pathlib import Path

import pytest

import skdp

PACKAGE = Path(skdp.__file__).parent
MODULE_LINES, BODY_LINES = 700, 60

COMMON = {"exceptions", "answer", "units", "_validation"}
ESTIMATOR = {"base", "_choice", "_inputs", "data", "queries", "solvers", "theory"} | COMMON
STREAM_ROOMS = {"privacy.streams", "privacy.ledger", "privacy.accounting.plain_data"}
ROOMS_BELOW = {"privacy.noise", "privacy.accounting"}
# First parts of a module's name below skdp -> what it may import from skdp, itself aside. The
# longest name counts: the rooms of privacy are layers of their own.
ALLOWED = {
    "_limits": set(),
    "exceptions": set(),
    "answer": set(),
    "units": set(),
    "_validation": {"exceptions"},
    "base": {"privacy", "data", "queries", "solvers"} | COMMON,
    "_inputs": {"base", "data", "queries"} | COMMON,
    "_choice": {"privacy.ledger.scope", "privacy.noise.integers", "solvers"},
    "ledger": {"exceptions", "units", "privacy"},
    "privacy": {"exceptions", "answer", "units"},
    "privacy.noise": {"exceptions"},
    "privacy.store": {"exceptions"},
    "privacy.accounting": {"exceptions", "units"},
    "privacy.gate": {"exceptions", "answer"} | ROOMS_BELOW,
    "privacy.streams": {"exceptions", "answer", "privacy.gate", "privacy.store"} | ROOMS_BELOW,
    "privacy.ledger": {"exceptions", "units", "privacy.gate", "privacy.store"} | ROOMS_BELOW,
    "data": {"exceptions"},
    "solvers": {"exceptions", "answer", "data.factorisations"},
    "queries": {"exceptions", "units", "data", "privacy.gate.bounds", "privacy.accounting.losses"}
    | {"solvers.linalg", "solvers.item_filter", "solvers.scaling"},
    "decomposition": ESTIMATOR | STREAM_ROOMS,
    "regression": ESTIMATOR,
    "graph": ESTIMATOR,
    "preprocessing": ESTIMATOR,
    "recommend": ESTIMATOR,
    "federated": {"_inputs", "data", "queries", "solvers", "privacy"} | COMMON,
    "theory": {"privacy", "queries.sums", "solvers", "data.blocks", "data.integers"} | COMMON,
}
# These may import everything; only the facade may import them.
TOP = {"testing", "plotting", "model_selection", "datasets", "papers", "_support"}
# What a query needs from the gate: words to describe a statistic, and no way to spend or to read.
QUERY_WORDS = {"Bound", "Bounded", "PrivateQuery", "SketchLaw"}
NUMERIC = {"numpy", "scipy"} | set(sys.stdlib_module_names)
DATA_FRAMES = {"pandas", "dask", "distributed"}
OPTIONAL = {"cryptography", "dp_accounting", "matplotlib", "mpmath"} | DATA_FRAMES
# numpy's generators make data (synthetic too), and a public net, fixed for all time; never noise.
GENERATORS = {"datasets", "_validation", "testing", "privacy.noise.words", "solvers.spectral",
              "papers._jain_2021", "decomposition._base", "decomposition._planning",
              "theory._made", "theory._plan"}  # fmt: skip
# Factorisations raise for a whole batch by one unit: below the gate they have one home, and are
# handed to its `of_public` where arguments are public. So in what queries run of the solvers.
FACTORISATIONS = {
    "cholesky", "cho_factor", "cho_solve", "cond", "det", "eig", "eigh", "eigsh", "eigvals",
    "eigvalsh", "expm", "inv", "ldl", "logm", "lobpcg", "lstsq", "lu", "lu_factor", "lu_solve",
    "matrix_power", "matrix_rank", "null_space", "orth", "pinv", "pinvh", "polar", "qr", "schur",
    "slogdet", "solve", "solve_sylvester", "solve_triangular", "spsolve", "sqrtm", "svd", "svds",
    "svdvals", "tensorinv", "tensorsolve",
}  # fmt: skip
FACTORISATIONS_AT = "data.factorisations"
SAY_PUBLIC = {"data.factorisations", "data.integers", "data.products", "queries.entries",
              "queries.interactions", "solvers.personalization", "papers._jain_2021"}  # fmt: skip
BELOW_THE_GATE = {"data", "queries", "solvers.item_filter", "solvers.local_fits",
                  "solvers.personalization", "solvers.scaling",
                  "solvers.user_heads", "papers._jain_2021"}  # fmt: skip
# What these import of the solvers besides, for what they make of answers.
OF_ANSWERS = {
    f"solvers.{name}"
    for name in ("columns", "linalg", "median_search", "postprocess", "linear_regression")
}
# The line that runs a closure, and the openings that were paid for (now, in parts, over time).
READERS = {"privacy.gate.session", "privacy.streams.continual"}


def violations(package):
    """Return "module:line: what is wrong" for every broken rule under the folder `package`."""
    sources = {
        module_name(path, package): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }
    nodes = {name: list(ast.walk(ast.parse(source))) for name, source in sources.items()}
    return [f"{cycle[0]}:1: an import circle, {' -> '.join(cycle)}" for cycle in circles(nodes)] + [
        f"{name}:{line}: {message}"
        for name, source in sources.items()
        for line, message in sorted(set(broken_rules(nodes[name], name, source)))
    ]


def module_name(path, package):
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"


def circles(nodes):
    """Yield a circle of modules that import each other (at any depth, also for types), if any."""
    graph = {name: imported_from_here(found, name, nodes) for name, found in nodes.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield error.args[1]


def imported_from_here(nodes, name, known):
    """Return the modules of the package that a module imports, itself aside."""
    found = set()
    for _, module, member in imports(nodes):
        if module.split(".")[0] == "skdp":
            target = module.removeprefix("skdp").removeprefix(".")
            full = ".".join(part for part in (target, member) if part)
            found.add(full if full in known else target or "__init__")
    return (found & set(known)) - {name}


def broken_rules(nodes, name, source):
    yield from import_rules(nodes, name)
    yield from gate_rules(nodes, name)
    yield from factorisation_rules(nodes, name)
    yield from size_rules(nodes, source)


def imports(nodes):
    """Yield (node, imported module, imported name or None), for imports at any depth."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node, "." * node.level + (node.module or ""), alias.name


def import_rules(nodes, name):
    at_top = set(top_level_nodes(nodes[0]))
    for node, module, member in imports(nodes):
        line = node.lineno
        target = module if member is None else f"{module}.{member}"
        root = module.split(".")[0]
        if module.startswith("."):
            yield line, "relative import"
        elif root == "skdp":
            yield from ((line, text) for text in inner_rules(name, module, member))
        else:
            yield from ((line, text) for text in outer_rules(name, module, target))
            if root in OPTIONAL and node in at_top:
                yield line, f"optional {root} is imported outside the function that needs it"


def top_level_nodes(tree):
    """Yield the statements that run on import, those under `if TYPE_CHECKING` aside."""
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        pending.extend(ast.iter_child_nodes(node))


def inner_rules(name, module, member):
    """Check one import from skdp against the map."""
    top = name.split(".")[0]
    if top == "__init__" or top in TOP:
        return
    layer = max((choice for choice in ALLOWED if is_within(choice, name)), key=len, default=None)
    if layer is None:
        yield f"{top} has no place in the map of tests/test_layers.py"
        return
    target = module.removeprefix("skdp").removeprefix(".")
    full = ".".join(part for part in (target, member) if part)
    permitted = ALLOWED[layer] | {layer, "_limits"}
    if not any(is_within(choice, target) or is_within(choice, full) for choice in permitted):
        yield f"{layer} imports skdp.{full}"
    elif layer == "queries" and full.split(".")[0] == "privacy" and member not in QUERY_WORDS:
        words = ", ".join(sorted(QUERY_WORDS))
        yield f"queries imports {member or module}; from privacy it needs only {words}"


def is_within(parent, name):
    return name == parent or name.startswith(parent + ".")


def is_hidden(part):
    return part.startswith("_") and not part.endswith("__")


def outer_rules(name, module, target):
    """Check one import from another package."""
    layer, root = name.split(".")[0], module.split(".")[0]
    if root == "sklearn" and any(is_hidden(part) for part in target.split(".")):
        yield f"private name of scikit-learn: {target}"
    if target.endswith("check_random_state"):
        yield "check_random_state: with None it is numpy's global state"
    if target == "numpy.random.seed":
        yield "numpy.random.seed"
    if layer in {"privacy", "solvers"} and root not in NUMERIC | OPTIONAL:
        yield f"{layer} imports {root}; it may use numpy and scipy"
    if layer in {"data", "queries"} and root == "sklearn":
        yield f"{name} imports {module}"


def gate_rules(nodes, name):
    """`_read` is touched by the session alone (and by the tools that audit it)."""
    may_generate = any(is_within(module, name) for module in GENERATORS)
    may_read = name in READERS or name.split(".")[0] == "testing"
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if node.attr == "_read" and not may_read:
                yield node.lineno, "_read outside the session"
            if node.attr == "check_random_state":
                yield node.lineno, "check_random_state: with None it is numpy's global state"
            of_random = getattr(node.value, "attr", None) == "random"
            if of_random and ast.unparse(node.value) in ("np.random", "numpy.random"):
                if node.attr == "seed":
                    yield node.lineno, "numpy.random.seed"
                elif not may_generate:
                    yield node.lineno, "numpy.random: noise and folds come from privacy.noise.words"
        elif isinstance(node, ast.Constant) and node.value == "_read" and not may_read:
            yield node.lineno, "_read outside the session"


def factorisation_rules(nodes, name):
    """Below the gate, factorisations are in their one home or are given to `of_public`."""
    if name == FACTORISATIONS_AT or not any(is_within(room, name) for room in BELOW_THE_GATE):
        return
    called = [node for node in nodes if isinstance(node, ast.Call)]
    public = {
        id(node.args[0]) for node in called if function_name(node) == "of_public" and node.args
    }
    text = f"below the gate it belongs in {FACTORISATIONS_AT}, or to its of_public"
    for node in nodes:
        of_linalg = isinstance(node, ast.Attribute) and is_linalg(node.value)
        if of_linalg and node.attr in FACTORISATIONS and id(node) not in public:
            yield node.lineno, f"{node.attr}: {text}"
    for node in called:
        squares = len(node.args) == 3 and ast.dump(node.args[1]) == ast.dump(node.args[2])
        if function_name(node) == "einsum" and squares:
            yield node.lineno, f"einsum of squares: use row_squares of {FACTORISATIONS_AT}"
        given = {key.arg for key in node.keywords}
        matrix_norm = (len(node.args) > 1 or "ord" in given) and "axis" not in given
        of_linalg = is_linalg(getattr(node.func, "value", None))
        if function_name(node) == "norm" and of_linalg and matrix_norm:
            yield node.lineno, f"norm with an order: {text}"
    for node, module, member in imports(nodes):
        if module in LINALG and member in FACTORISATIONS | {"norm"}:
            yield node.lineno, f"{member}: {text}"
        elif {module, f"{module}.{member}"} & LINALG and is_renamed(node):
            yield node.lineno, f"{module} under another name: {text}"


LINALG = {"numpy.linalg", "scipy.linalg", "scipy.sparse.linalg"}


def function_name(call):
    """Return the last word of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", None))


def is_linalg(node):
    """Whether an expression is a module of linear algebra: np.linalg, scipy.linalg, linalg."""
    return isinstance(node, ast.Attribute | ast.Name) and "linalg" in (
        getattr(node, "attr", None), getattr(node, "id", None)
    )  # fmt: skip


def is_renamed(node):
    return any(alias.asname not in (None, "linalg") for alias in node.names)


def size_rules(nodes, source):
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield 1, f"{lines} lines; a module has at most {MODULE_LINES}"
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = body_length(node)
            if length > BODY_LINES:
                yield node.lineno, f"{node.name}: a body of {length} lines, at most {BODY_LINES}"


def body_length(function):
    """Count the lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_package_obeys_the_map():
    """And is seen: an empty folder would obey every rule."""
    assert violations(PACKAGE) == []
    names = {module_name(path, PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert {"__init__", "base", "privacy.gate.session", "queries.rows"} <= names


def write(folder, files):
    """Put sources into a folder, as {path: source}."""
    for where, source in files.items():
        path = folder / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


def long_function(lines):
    return "def f():\n    '''Say.'''\n" + "    x = 1\n" * lines


# (a module, what stands in it, what is said of it)
PLANTED = [
    ("privacy/a.py", "import sklearn.utils", "privacy imports sklearn"),
    ("privacy/a.py", "def f():\n    import joblib", "privacy imports joblib"),
    ("privacy/a.py", "from skdp import solvers", "imports skdp.solvers"),
    ("privacy/a.py", "import skdp.solvers.power", "imports skdp.solvers.power"),
    ("privacy/a.py", "from skdp.queries.rows import R", "imports skdp.queries.rows.R"),
    ("privacy/noise/a.py", "import skdp.privacy.accounting", "noise imports skdp.privacy.acc"),
    ("privacy/accounting/a.py", "from skdp.privacy.noise import integers", "accounting imports"),
    ("privacy/gate/a.py", "def f():\n    import skdp.privacy.streams", "gate imports skdp.privacy"),
    ("privacy/streams/a.py", "from skdp.privacy.ledger import routes", "streams imports skdp"),
    ("privacy/ledger/a.py", "from skdp.privacy.streams import groups", "ledger imports skdp"),
    ("solvers/a.py", "from skdp.privacy import Answer", "imports skdp.privacy.Answer"),
    ("solvers/a.py", "from sklearn import utils", "solvers imports sklearn"),
    ("queries/a.py", "from skdp.privacy.gate.session import A", "imports skdp.privacy.gate"),
    ("queries/a.py", "from skdp.privacy.gate.bounds import g", "from privacy it needs only Bound"),
    ("queries/a.py", "from skdp.solvers.power import f", "imports skdp.solvers.power.f"),
    ("queries/a.py", "import skdp", "queries imports skdp."),
    ("queries/a.py", "from sklearn.utils.parallel import delayed", "queries.a imports sklearn"),
    ("data/a.py", "import sklearn.utils.extmath", "data.a imports sklearn"),
    ("base.py", "from skdp.graph import f", "base imports skdp.graph"),
    ("graph/_a.py", "import skdp.privacy.noise.integers", "graph imports skdp.privacy"),
    ("graph/_a.py", "from skdp import testing", "graph imports skdp.testing"),
    ("graph/_a.py", "from . import _b", "relative import"),
    ("helpers.py", "import skdp.base", "helpers has no place"),
    ("base.py", "from sklearn.utils._tags import Tags", "private name"),
    ("base.py", "from sklearn.base import _fit_context", "private name"),
    ("base.py", "try:\n    import pandas\nexcept ImportError:\n    pass", "optional pandas"),
    ("queries/a.py", "def f(s, b):\n    return s._read(b, 1)", "_read outside"),
    ("base.py", "def f(s):\n    return getattr(s, '_read')", "_read outside"),
    ("base.py", "from sklearn.utils import check_random_state", "check_random_state"),
    ("base.py", "import sklearn\nsklearn.utils.check_random_state(0)", "check_random_state"),
    ("base.py", "import numpy as np\nnp.random.seed(0)", "numpy.random.seed"),
    ("base.py", "from numpy.random import seed", "numpy.random.seed"),
    ("model_selection/a.py", "import numpy as np\nnp.random.default_rng()", "numpy.random: noise"),
    ("data/a.py", "import numpy as np\ndef f(A):\n    np.linalg.eigh(A)", "eigh: below the gate"),
    ("queries/a.py", "import scipy.linalg\nf = scipy.linalg.solve", "solve: below"),
    ("queries/a.py", "from numpy.linalg import svd", "svd: below"),
    ("data/a.py", "import scipy.linalg as sl\nf = sl.inv", "another name"),
    ("data/a.py", "from numpy import linalg as la\nf = la.inv", "another name"),
    ("solvers/personalization.py", "import numpy as np\nf = np.linalg.qr", "qr: below"),
    ("data/a.py", "import numpy as np\nx = np.linalg.norm([[1.0]], 2)", "norm with an order"),
    ("data/a.py", "import numpy as np\nx = public(np.linalg.svd, 1)", "svd: below"),
    ("data/a.py", "import numpy as np\nnp.einsum('ij,ij->i', A, A)", "einsum of squares"),
    ("base.py", "x = 1\n" * (MODULE_LINES + 1), "at most 700"),
    ("base.py", long_function(BODY_LINES + 1), "f: a body of 61 lines"),
]


CIRCLES = {
    "at-import": "from skdp.solvers import b",
    "by-name": "import skdp.solvers.b",
    "in-a-function": "def f():\n    from skdp.solvers.b import g",
    "for-types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from skdp.solvers.b import B",
}


@pytest.mark.parametrize("case", CIRCLES)
def test_planted_circle_is_found(case, tmp_path):
    a, b = CIRCLES[case], "from skdp.solvers import c"
    write(tmp_path, {"solvers/a.py": a, "solvers/b.py": b, "solvers/c.py": "x = 1"})
    assert violations(tmp_path) == []
    write(tmp_path, {"solvers/c.py": "from skdp.solvers.a import f"})
    (found,) = violations(tmp_path)
    assert "an import circle, solvers." in found


@pytest.mark.parametrize(
    ("where", "source", "message"),
    PLANTED,
    ids=[f"{i} {case[2]}" for i, case in enumerate(PLANTED)],
)
def test_planted_violation_is_found(where, source, message, tmp_path):
    write(tmp_path, {where: source})
    (found,) = violations(tmp_path)
    assert message in found


GOOD = {
    "__init__.py": "from skdp.decomposition import DPPCA\nfrom skdp.plotting import f",
    "privacy/gate/session.py": "from skdp.privacy.noise.integers import f\ns._read(b)",
    "privacy/receipts.py": "def f():\n    import dp_accounting",
    "solvers/power.py": "from scipy.linalg import eigh\nfrom skdp.solvers import linalg",
    "data/blocks.py": "from concurrent.futures import ThreadPoolExecutor",
    "queries/rows.py": "from skdp.privacy.gate.bounds import Bound, Bounded\n"
    "from skdp.solvers.linalg import f\nfrom skdp.data.blocks import g",
    "base.py": "from sklearn import __version__\nfrom skdp.privacy import PrivacySession",
    "decomposition/_pca.py": "from typing import TYPE_CHECKING\nfrom skdp.base import Base\n"
    "if TYPE_CHECKING:\n    import pandas",
    "testing/_audit.py": "from skdp.decomposition import DPPCA\ns._read",
    "solvers/long.py": long_function(BODY_LINES),
    "solvers/linalg.py": "import numpy as np\nf = np.linalg.eigh",
    "data/factorisations.py": "import numpy as np\nf = np.linalg.eigh",
    "data/integers.py": "import numpy as np\nfrom skdp.data.factorisations import of_public\n"
    "x = of_public(np.linalg.norm, 1, 2), of_public(np.linalg.svd, 1), np.linalg.norm([1.0])",
}


def test_what_runs_below_the_gate_is_listed():
    """What a module below the gate imports of the solvers runs there, but what gets answers."""
    names = {module_name(path, PACKAGE): path for path in PACKAGE.rglob("*.py")}
    listed = {name for name in names if any(is_within(room, name) for room in BELOW_THE_GATE)}
    nodes = {name: list(ast.walk(ast.parse(names[name].read_text("utf-8")))) for name in listed}
    used = set().union(*(imported_from_here(nodes[name], name, names) for name in listed))
    assert {name for name in used - listed if is_within("solvers", name)} <= OF_ANSWERS
    assert all(any(is_within(room, name) for name in names) for room in BELOW_THE_GATE)


def test_who_gets_a_batch_of_users_says_of_nothing_that_it_is_public():
    """Nor does any module next to these: `of_public` rests on the word of whoever writes it."""
    paths = [path for path in PACKAGE.rglob("*.py") if "of_public(" in path.read_text("utf-8")]
    assert {module_name(path, PACKAGE) for path in paths} <= SAY_PUBLIC
    for path in paths:
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                called = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
                names = {arg.arg for arg in function.args.args} & {"batch"}
                assert not (names and "of_public" in map(function_name, called)), function.name


def test_good_package_has_no_violation(tmp_path):
    write(tmp_path, GOOD)
    assert violations(tmp_path) == []

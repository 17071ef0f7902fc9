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
MODULE_LINES, BODY_LINES = 400, 60

COMMON = {"exceptions", "_validation", "_types"}
ESTIMATOR = {
    "base",
    "_inputs",
    "_links",
    "_bounds",
    "_entry_units",
    "_labels",
    "_groups",
    "_placed",
    "_scales",
    "answer",
    "data",
    "queries",
    "solvers",
} | COMMON
STREAM_ROOMS = {"privacy.streams", "privacy.ledger"}  # of a stream, and of many servers
ROOMS_BELOW = {"privacy.noise", "privacy.accounting"}
# First parts of a module's name below skdp -> what it may import from skdp, itself aside. The
# longest name counts: the rooms of privacy are layers of their own.
ALLOWED = {
    "exceptions": set(),
    "_types": set(),
    "_validation": {"exceptions"},
    "_bounds": set(),
    "_entry_units": {"queries"},
    "_labels": set(),
    "_progress": set(),
    "_packing": {"exceptions"},
    "_tables": set(),
    "_links": set(),
    "_versions": set(),
    "_threads": set(),
    "answer": set(),
    "_inputs": {"_validation", "data"},
    "_groups": {"_inputs", "_labels", "_placed", "_scales", "_validation", "data", "queries"},
    "_placed": {"_inputs", "_labels", "data"},
    "_scales": {"exceptions", "queries", "solvers"},
    "privacy": {"exceptions", "answer"},
    "privacy.noise": {"exceptions"},
    "privacy.accounting": {"exceptions", "_tables"},
    "privacy.gate": {"exceptions", "answer"} | ROOMS_BELOW,
    "privacy.streams": {"exceptions", "answer", "_packing", "privacy.gate"} | ROOMS_BELOW,
    "privacy.ledger": {"exceptions", "_tables", "privacy.gate"} | ROOMS_BELOW,
    "data": {"exceptions", "_threads"},
    "solvers": {"exceptions", "answer"},
    "queries": {"data", "privacy.gate.bounds", "privacy.accounting.sketch_laws", "solvers.linalg"}
    | {"exceptions", "solvers.item_filter"},
    "base": {"privacy", "_progress", "_links", "_threads"} | COMMON,
    "_streaming": {"base", "privacy"} | COMMON,
    "decomposition": ESTIMATOR | {"theory", "_streaming", "_packing"} | STREAM_ROOMS,
    "regression": ESTIMATOR | {"theory"},
    "graph": ESTIMATOR | {"theory"},
    "preprocessing": ESTIMATOR | {"theory"},
    "recommend": ESTIMATOR | {"theory"},
    "printed": ESTIMATOR | {"decomposition", "privacy.streams", "theory"},
    "federated": {"_labels", "_packing", "answer", "data", "queries", "solvers", "privacy"}
    | COMMON,
    "ledger": {"_tables", "exceptions", "privacy"},
    "theory": {"_tables", "answer", "privacy", "queries.sums", "solvers"} | COMMON,
}
# Programs, which no module imports when it is loaded: what they may import besides.
PROGRAMS = {"federated._demo_fit": {"decomposition"}}
# These may import everything; only the facade may import them.
TOP = {"testing", "plotting", "model_selection", "datasets", "_skops"}
# What a query needs from the gate: words to describe a statistic, and no way to spend or to read.
QUERY_WORDS = {"Bound", "Bounded", "PrivateQuery", "SketchLaw"}
NUMERIC = {"numpy", "scipy"} | set(sys.stdlib_module_names)
OPTIONAL = {
    "cryptography",
    "dask",
    "distributed",
    "dp_accounting",
    "matplotlib",
    "mpmath",
    "pandas",
}
# numpy's generators make data (synthetic too), and a public net, fixed for all time; never noise.
GENERATORS = {"datasets", "_types", "testing", "privacy.noise.words", "solvers.candidates",
              "solvers.thinning", "decomposition._probabilistic", "theory._histories",
              "federated._demo_fit"}  # fmt: skip
# The line that runs a closure, and the openings that were paid for (now, in parts, over time).
READERS = {"privacy.gate.session", "privacy.gate.grants", "privacy.streams.continual"}


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
    permitted = ALLOWED[layer] | PROGRAMS.get(name, set()) | {layer}
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
            if is_numpy_random(node.value):
                if node.attr == "seed":
                    yield node.lineno, "numpy.random.seed"
                elif not may_generate:
                    yield node.lineno, "numpy.random: noise and folds come from privacy.noise.words"
        elif isinstance(node, ast.Constant) and node.value == "_read" and not may_read:
            yield node.lineno, "_read outside the session"


def is_numpy_random(node):
    match node:
        case ast.Attribute(ast.Name("np" | "numpy"), "random"):
            return True
    return False


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
    assert violations(PACKAGE) == []


def test_package_is_seen():
    """An empty folder would obey every rule."""
    names = {module_name(path, PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert {
        "__init__",
        "base",
        "privacy.gate.session",
        "queries.rows",
        "decomposition._pca",
    } <= names


def long_function(lines):
    return "def f():\n    '''Say.'''\n" + "    x = 1\n" * lines


PLANTED = {
    "folds-from-numpy": (
        "model_selection/a.py",
        "import numpy as np\nx = np.random.default_rng()",
        "numpy.random: noise and folds",
    ),
    "privacy-imports-sklearn": ("privacy/a.py", "import sklearn.utils", "privacy imports sklearn"),
    "privacy-imports-joblib": (
        "privacy/a.py",
        "def f():\n    import joblib",
        "privacy imports joblib",
    ),
    "privacy-imports-solvers": (
        "privacy/a.py",
        "from skdp.solvers import power",
        "skdp.solvers.power",
    ),
    "privacy-imports-solvers-2": (
        "privacy/a.py",
        "from skdp import solvers",
        "imports skdp.solvers",
    ),
    "privacy-imports-solvers-3": (
        "privacy/a.py",
        "import skdp.solvers.power",
        "skdp.solvers.power",
    ),
    "privacy-imports-queries": (
        "privacy/a.py",
        "from skdp.queries.rows import R",
        "skdp.queries.rows.R",
    ),
    "noise-imports-accounting": (
        "privacy/noise/a.py",
        "from skdp.privacy.accounting.losses import Loss",
        "privacy.noise imports skdp.privacy.accounting",
    ),
    "accounting-imports-noise": (
        "privacy/accounting/a.py",
        "from skdp.privacy.noise import integers",
        "privacy.accounting imports skdp.privacy.noise",
    ),
    "gate-imports-streams": (
        "privacy/gate/a.py",
        "def f():\n    from skdp.privacy.streams.continual import Stream",
        "privacy.gate imports skdp.privacy.streams",
    ),
    "gate-imports-ledger": (
        "privacy/gate/a.py",
        "from skdp.privacy.ledger import routes",
        "privacy.gate imports skdp.privacy.ledger",
    ),
    "streams-import-ledger": (
        "privacy/streams/a.py",
        "from skdp.privacy.ledger import routes",
        "privacy.streams imports skdp.privacy.ledger",
    ),
    "ledger-imports-streams": (
        "privacy/ledger/a.py",
        "from skdp.privacy.streams import groups",
        "privacy.ledger imports skdp.privacy.streams",
    ),
    "solvers-import-privacy": (
        "solvers/a.py",
        "from skdp.privacy import Answer",
        "skdp.privacy.Answer",
    ),
    "solvers-import-sklearn": (
        "solvers/a.py",
        "from sklearn import utils",
        "solvers imports sklearn",
    ),
    "queries-import-session": (
        "queries/a.py",
        "from skdp.privacy.gate.session import PrivacySession",
        "queries imports skdp.privacy.gate.session.PrivacySession",
    ),
    "queries-import-module": (
        "queries/a.py",
        "from skdp.privacy.gate.bounds import gaussian_step",
        "queries imports gaussian_step",
    ),
    "queries-import-solver": (
        "queries/a.py",
        "from skdp.solvers.power import f",
        "skdp.solvers.power.f",
    ),
    "queries-import-base": ("queries/a.py", "import skdp.base", "queries imports skdp.base"),
    "queries-import-facade": ("queries/a.py", "import skdp", "queries imports skdp."),
    "queries-import-sklearn": (
        "queries/a.py",
        "from sklearn.utils.parallel import delayed",
        "queries.a",
    ),
    "blocks-import-sklearn": (
        "data/blocks.py",
        "import sklearn.utils.extmath",
        "data.blocks",
    ),
    "base-imports-query": ("base.py", "from skdp.queries import rows", "base imports skdp.queries"),
    "shell-imports-privacy": (
        "graph/_a.py",
        "import skdp.privacy.noise.integers",
        "graph imports skdp.privacy",
    ),
    "shell-imports-testing": (
        "graph/_a.py",
        "from skdp import testing",
        "graph imports skdp.testing",
    ),
    "shell-imports-shell": (
        "graph/_a.py",
        "import skdp.regression",
        "graph imports skdp.regression",
    ),
    "unknown-module": ("helpers.py", "import skdp.base", "helpers has no place"),
    "relative": ("graph/_a.py", "from . import _b", "relative import"),
    "hidden-module": ("base.py", "from sklearn.utils._tags import Tags", "private name"),
    "hidden-package": ("base.py", "def f():\n    import sklearn._config", "private name"),
    "hidden-member": ("base.py", "from sklearn.base import _fit_context", "private name"),
    "optional-at-top": (
        "base.py",
        "try:\n    import pandas\nexcept ImportError:\n    pass",
        "optional",
    ),
    "read-in-query": ("queries/a.py", "def f(s, b):\n    return s._read(b, 1)", "_read outside"),
    "read-by-alias": ("base.py", "def f(s):\n    g = s._read\n    return g", "_read outside"),
    "read-by-name": ("base.py", "def f(s):\n    return getattr(s, '_read')", "_read outside"),
    "random-state": (
        "base.py",
        "from sklearn.utils import check_random_state",
        "check_random_state",
    ),
    "random-state-2": (
        "base.py",
        "import sklearn\nsklearn.utils.check_random_state(0)",
        "check_random",
    ),
    "seed": ("base.py", "import numpy as np\nnp.random.seed(0)", "numpy.random.seed"),
    "seed-imported": ("base.py", "from numpy.random import seed", "numpy.random.seed"),
    "long-module": ("base.py", "x = 1\n" * (MODULE_LINES + 1), "at most 400"),
    "long-body": ("base.py", long_function(BODY_LINES + 1), "f: a body of 61 lines"),
}


CIRCLES = {
    "at-import": "from skdp.solvers import b",
    "by-name": "import skdp.solvers.b",
    "in-a-function": "def f():\n    from skdp.solvers.b import g",
    "for-types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from skdp.solvers.b import B",
}


@pytest.mark.parametrize("case", CIRCLES)
def test_planted_circle_is_found(case, tmp_path):
    folder = tmp_path / "solvers"
    folder.mkdir()
    (folder / "a.py").write_text(CIRCLES[case], encoding="utf-8")
    (folder / "b.py").write_text("from skdp.solvers import c", encoding="utf-8")
    (folder / "c.py").write_text("x = 1", encoding="utf-8")
    assert violations(tmp_path) == []
    (folder / "c.py").write_text("from skdp.solvers.a import f", encoding="utf-8")
    (found,) = violations(tmp_path)
    assert "an import circle, solvers." in found


@pytest.mark.parametrize("case", PLANTED)
def test_planted_violation_is_found(case, tmp_path):
    where, source, message = PLANTED[case]
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    found = violations(tmp_path)
    assert len(found) == 1
    assert message in found[0]


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
}


def test_good_package_has_no_violation(tmp_path):
    for where, source in GOOD.items():
        path = tmp_path / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    assert violations(tmp_path) == []

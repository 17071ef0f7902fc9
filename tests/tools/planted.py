"""Planted slips, each of a line or two: {what: (file, is, slip)}; `select_tier.py` plants them.

The first tier must catch each. `test_mutations.py` asks the same of single checks.
"""

import importlib
import inspect
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType
from unittest import mock

# What broke a privacy claim, or a number, when an audit planted it.
PLANTED = {
    "columns kept by the exact number of rows": (
        "regression/_linear.py", "n = released_count(2 * half.value, 2 * half.noise_scale)",
        "n = float(half.value * 0 + ask._query._source.n_rows())",
    ),
    "codes of one block count for the next ones": (
        "data/numbers.py", "alike.append(_coded(block, self.about))", "alike.append(alike[0])",
    ),
    "a clip norm is lowered by the exact number of rows": (
        "decomposition/_base.py", "2 * lost > noise.n:", "2 * lost > ask._query._source.n_rows():",
    ),
    "targets count as far as the exact number of rows allows": (
        "regression/_linear.py", "(session, *targets, n, scale)",
        "(session, *targets, float(query._source.n_rows()), scale)",
    ),
    "a rank at infinity has half of its bound": (
        "queries/sums.py", "return self._number(name, -0.5, 0.5, answer)",
        "return self._number(name, -0.5, 0.5, answer) if threshold < math.inf"
        " else self._number(name, -0.25, 0.25, answer)",
    ),
    "a share of the budget by the number of rows": (
        "regression/_linear.py", '["clip_norm"] / (QUESTIONS + 1)',
        '["clip_norm"] / (QUESTIONS + 1 + query._source.n_rows() % 2)',
    ),
    "scores of products that depend on other rows": (
        "model_selection/_proven.py", "model._predictor(finish, _products)",
        "model._predictor(finish)",
    ),
    "a clip norm stays as it is where one row is far longer": (
        "regression/_linear.py",
        "        return lower if found.found and lower < _ALIKE * given else given",
        "        far = ask._query._source.sum(lambda v: np.array([sum(v > 1e5 * given)]), (1,))\n"
        "        lower = math.inf if far[0] else lower\n"
        "        return lower if found.found and lower < _ALIKE * given else given",
    ),
    # A bound of `replace` that is the one of `add_remove`, and the like, by query.
    "positive sum under replace": (
        "queries/sums.py", "math.sqrt(self.units) * level if size > 1 else level", "level",
    ),
    "tangent product under replace": (
        "queries/sums.py", "self.neighbours.array(level) * WIDER,", "level * WIDER,",
    ),
    "tangent product of persons under replace": (
        "queries/sums.py", "change = self.neighbours.array(level)\n", "change = level\n",
    ),
    "ellipses with classes under replace": (
        "queries/plane.py", "2 * square if self._groups > 1 else 25 / 4", "25 / 4",
    ),
    "ellipse of one class under replace": (
        "queries/plane.py", "2 * square if self._groups > 1 else 25 / 4", "square",
    ),
    "cells under replace": ("queries/plane.py", "self.neighbours.units\n", "1.0\n"),
    "shares of histories under replace": (
        "queries/interactions.py", "=units, l1_slack", "=1.0, l1_slack",
    ),
    "pairs of items under replace": (
        "queries/interactions.py", "self.neighbours.positive(1.0, d * (d - 1) // 2)", "1.0",
    ),
    "moment of entries under replace": (
        "queries/entries.py", "sizes[0]) + against_zero(sizes[1]", "max(sizes)",
    ),
    "entry under replace": (
        "queries/entries.py", "Neighbours(self.adjacency", 'Neighbours("add_remove"',
    ),
    # Of ledgers, of what is paid by name, of clients, and of what runs below the gate.
    "private eigenvalues that are called public": (
        "solvers/local_fits.py", "        s, P = eigh(K)\n",
        "        s, P = of_public(np.linalg.eigh, K)\n",
    ),
    "any way to lie in parts is affordable": (
        "privacy/ledger/balances.py", "return all(map(self", "return any(map(self",
    ),
    "parts of equal Gaussians are one": (
        "privacy/ledger/balances.py", "(part.gaussian, frozenset(part.others.items()))",
        "part.gaussian",
    ),
    "whole groups are no part of a rule": (
        "privacy/ledger/balances.py", "rule() != part.rule()", "parts != part.parts",
    ),
    "noise of the part that draws least": (
        "privacy/ledger/balances.py", "sum(max(part.drawn", "sum(min(part.drawn",
    ),
    "noise of a search is drawn once": (
        "privacy/ledger/balances.py", "losses, fit.sessions", "losses, 1",
    ),
    "any line stands for the one that was seen": (
        "privacy/store.py", "found != (head,)", "found is None",
    ),
    "remembered before it is committed": (
        "privacy/store.py", "                    yield chain\n",
        "                    yield chain\n                    _SEEN[self.path] = chain.last\n",
    ),
    "a lock that is left when its last copy is closed": (
        "privacy/store.py", "_apply(self._descriptor, False)", "pass",
    ),
    "a late ledger pays for what was granted alone": (
        "privacy/ledger/routes.py", "[*granted, *more]", "granted",
    ),
    "a search whose file is gone was never fitted": (
        "privacy/ledger/routes.py", "self._drawn_on = True  #", "self._drawn_on = False  #",
    ),
    "an answer of another form is told": (
        "federated/_clients.py", "found if grant.fits(found) else grant.nothing()", "found",
    ),
    "errors of hostile requests come out": (
        "federated/_clients.py", "except Exception as", "except PrivacyError as",
    ),
    "the size of a change is not named in a ledger": (
        "federated/_clients.py", "name, sensitivity=self._sensitivity)", "name)",
    ),
    # The rest of the bounds.
    "gram of interactions under replace": (
        "queries/interactions.py", "2 * (2 * d0 - 1)", "2 * d0 - 1",
    ),
    "flipped cells under replace": ("queries/interactions.py", "int(self._units)", "1"),
    "counts of items under replace": (
        "queries/interactions.py", "moved = self._units\n", "moved = 1.0\n",
    ),
    "read-out under replace, long targets": (
        "queries/regression.py", "2 * math.sqrt(2) * U * t", "math.sqrt(2) * U * t",
    ),
    "exact count of rows in a picture": (
        "decomposition/_score_density.py", 'query.n_rows) if self.adjacency == "replace" else None',
        "source.n_rows())",
    ),
    "moment with a large bias under replace": (
        "queries/rows.py", "if self.neighbours.replace and c > C:", "if False:",
    ),
    "rounding of one row where two change": ("queries/rows.py", "self.neighbours.units * C", "C"),
    "sums of rows of both signs as positive ones": (
        "queries/rows.py", "partial(blocks.entrywise, partial(np.maximum, 0.0))",
        "lambda rows: rows",
    ),
    "whole pairs in l1, once": ("queries/entries.py", "2.0 if symmetric else 1", "1"),
    "mean of private records as public": (
        "queries/records.py",
        '`records`; public under the unit "label" only."""\n        if not self.unit.of_targets:',
        '`records`; public under the unit "label" only."""\n        if False:',
    ),
    # Sums over several payers, files, reports or units.
    "what is left counts by its square": (
        "privacy/ledger/routes.py", '(math.sqrt(s) if k == "gaussian" else s)', "s",
    ),
    "a stream of a search goes on after it": (
        "privacy/ledger/routes.py", "not Path(self.path).exists()", "False",
    ),
    "ledgers that open during a paid fit are not charged": (
        "privacy/ledger/routes.py", "token not in covered", "False",
    ),
    "delta of two neighbours is twice delta": (
        "privacy/ledger/fits.py", "growth = 1.0 + math.exp(min(epsilon, 700.0))", "growth = 2.0",
    ),
    "noise of a tree, half of its draws": (
        "privacy/streams/continual.py", "else 2 * self.horizon", "else self.horizon",
    ),
    "a score of groups over the number of their rows": (
        "model_selection/_scorers.py", ") if owners is None else owners.max() + 1", ")",
    ),
    "a step that integers cannot hold": (
        "federated/noise_parts.py", "max(sys.float_info.min, bound.min_step)", "sys.float_info.min",
    ),
    "moments of records under replace": (
        "queries/records.py", "self.neighbours.positive(math.sqrt(2.0)", "math.sqrt(2.0",
    ),
    "owners of a score are its rows": (
        "model_selection/_scorers.py", "owners,\n        )", "None,\n        )",
    ),
    "one person in one file counts as several": ("data/units.py", ", whole_files=True", ""),
    "score of labels under add_remove": (
        "model_selection/_scorers.py", 'adjacency="add_remove" if private_count else "replace"',
        'adjacency="add_remove" if private_count or unit.of_targets else "replace"',
    ),
    "pure losses of one run added like Gaussians": (
        "privacy/ledger/routes.py", ') if self.run.kind == "gaussian" else math.fsum(values)', ")",
    ),
    "parts of a sum in any ledger as in one of all": (
        "privacy/ledger/routes.py", "len(sessions) / math.sqrt(len(keys", "math.sqrt(len(sessions",
    ),
    "sketches in a replace ledger at half price": (
        "privacy/ledger/store.py", "fit.costs(losses", "replace(fit, factor=1.0).costs(losses",
    ),
    "receipt of the report that says least": (
        "decomposition/_local_reports.py", "most = max(receipts", "most = min(receipts",
    ),
    "a paid fit drawn on by another adjacency": (
        "privacy/ledger/routes.py", "fit.adjacency, tuple", "tuple",
    ),
    "of disjoint parts the dearest Gaussian alone": (
        "privacy/ledger/balances.py", 'mixed + sorted(plain, key=attrgetter("gaussian"',
        '(mixed + sorted(plain, key=attrgetter("gaussian")',
    ),
    "a paid search is charged to one ledger alone": (
        "privacy/ledger/routes.py", "None, fit.estimator)", "None, fit.estimator)[:1]",
    ),
    "lines of a ledger are hashed alone": (
        "privacy/store.py", 'sha256(b"%s\\n%s" % (before.encode(), record))', "sha256(record)",
    ),
    "a search takes fits of another unit": (
        "privacy/ledger/routes.py", "if (fit.unit, fit.adjacency) != self.meaning:", "if False:",
    ),
    "a score divided by the exact number of rows": (
        "model_selection/_scorers.py", "n = max(1.0, float(ask.count(share=_COUNT_SHARE).value))",
        "n = max(1.0, min(float(ask.count(share=_COUNT_SHARE).value), float(n_rows(as_rows(X)))))",
    ),
    "a client that ends early keeps its rest": (
        "federated/_clients.py", "forfeit_rest(self._session)\n        routes", "routes",
    ),
    "noise of honest clients and of colluders": ("federated/config.py", "n_colluders - self.", ""),
    "noise of clients that may be away": (
        "federated/config.py", "n_clients - self.n_colluders - self.n_dropouts", "n_clients",
    ),
    "half of a client's noise": (
        "federated/noise_parts.py", "noise.PART_LEVELS)", "noise.PART_LEVELS) // 2",
    ),
    "a client that adds noise to its first answer alone": (
        "federated/noise_parts.py", "noise.PART_LEVELS)", "noise.PART_LEVELS) * (self.serial == 0)",
    ),
    "the step of the server is believed": (
        "federated/noise_parts.py", "elif not _covers(bound, step, allowed):", "elif False:",
    ),
    "the facts of the server are believed": (
        "federated/_clients.py", "if parsed.facts != self._facts:", "if False:",
    ),
    "one column is asked for twice": (
        "federated/_clients.py", "        and np.unique(value).size == value.size\n", "",
    ),
    "arguments of a server are believed": (
        "federated/_clients.py", "sound = all(check(", "sound = True or all(check(",
    ),
    "a request is answered twice": ("federated/_clients.py", "parsed.serial <=", "parsed.serial <"),
    "a total of too few clients": ("federated/_clients.py", "needed <= opened", "0 <= opened"),
    "coefficients of shares are all equal": (
        "federated/_crypto.py", "_DRAW_BYTES * (threshold - 1)", "_DRAW_BYTES) * (threshold - 1",
    ),
    "one clip of residuals for a batch of users": (
        "solvers/local_fits.py", ", axis=(1, 2))[:, None, None]", ") * np.ones((len(R), 1, 1))",
    ),
    "public design without records of a bad target": (
        "queries/records.py", "found = self.of_rows_alone()", "found = self.moment_sizes",
    ),
    "sketch of a stream that starts from rows": (
        "decomposition/_incremental_pca.py", "postprocess.sketch_size(k, d))))",
        "postprocess.sketch_size(k, d))) + np.arange(d)[:, None] / X.n_rows())",
    ),
    "power steps that start from rows": (
        "decomposition/_base.py", "(d, k + extra)))",
        "(d, k + extra))) + np.arange(d)[:, None] / ask._query.n_rows",
    ),
    "route by what a CSR matrix stores": (
        "decomposition/_pca.py", "sparse = _base.is_sparse(source) and (",
        "sparse = _base.is_sparse(source) and source.whole().nnz < source.n_rows() * d and (",
    ),
    "law of one chi-square for two": (
        "queries/sketches.py", "SketchLaw(tuple(degrees", "SketchLaw(tuple(degrees[:1]",
    ),
    "records that are not made durable": (
        "privacy/store.py", ', "synchronous = EXTRA', ', "synchronous = NORMAL',
    ),
    "a marker over the newest one": ("privacy/store.py", "slots.index(min(", "slots.index(max("),
    "a stream that goes on beside its first file": (
        "privacy/streams/checkpoints.py",
        "group.interrupted = True  # a file that can be resumed is the stream now", "pass",
    ),
    "a marker that is not made durable": ("privacy/store.py", "os.fsync(self.opened())", "pass"),
    "a marker that says where a stream begins alone": (
        "privacy/store.py", "if chain.last not in (START, lock.marker()):", "if False:",
    ),
    "a database that stays open in a child": ("privacy/store.py", "store.disconnect()", "pass"),
    "a stream that goes on at two paths": (
        "privacy/streams/checkpoints.py", "old.append(_MOVED)", "pass",
    ),
    "streams without the highest level of their tree": (
        "privacy/streams/continual.py", "sqrt(self.levels", "sqrt(self.levels - 1",
    ),
    "nodes of a stream without noise": (
        "privacy/streams/continual.py", "_grant.draw(*node)", "_grant.draw(*node) * (node[0] < 2)",
    ),
    "one noise for all nodes of a stream": (
        "privacy/streams/continual.py", "self._grant.draw(*node)", "self._grant.draw()",
    ),
    # Noise and ledger lines.
    "noise over sqrt 2": (
        "privacy/gate/bounds.py", "l2_slack, mu * sigma", "l2_slack, mu * sigma * math.sqrt(2)",
    ),
    "a share that is paid by half": (
        "privacy/gate/session.py", "shares[kind] += share", "shares[kind] += share / 2",
    ),
    "one kind of noise for two openings": (
        "privacy/gate/session.py", ", *index)\n        if", ")\n        if",
    ),
    "rows that are not cut": ("data/integers.py", "squares <= bound", "squares <= 4 * bound"),
    "rows that are a unit longer than their bound": (
        "data/integers.py", "bound = self.square_bound\n        over",
        "bound = (self.clip_norm / self.unit + 1) ** 2\n        over",
    ),
    "a bad entry that counts as zero in its row": (
        "data/integers.py", "            Z = entrywise(self._rounded, rows)",
        "            rows = entrywise(lambda z: np.where(np.isfinite(z), z, 0.0), rows)\n"
        "            Z = entrywise(self._rounded, rows)",
    ),
    "less noise than the ledger says": (
        "privacy/gate/session.py",
        "drawn = noise.integer_gaussian(words, bound.shape, self._levels)",
        "drawn = noise.integer_gaussian(words, bound.shape, self._levels) * 2 // 3",
    ),
    "the same noise in every release": (
        "privacy/gate/session.py",
        "drawn = noise.integer_gaussian(words, bound.shape, self._levels)",
        "drawn = noise.integer_gaussian(lambda n: np.arange(1, n + 1, dtype=np.uint64) * "
        "np.uint64(0x9E3779B97F4A7C15), bound.shape, self._levels)",
    ),
    "noise in one column": (
        "privacy/gate/session.py",
        "drawn = noise.integer_gaussian(words, bound.shape, self._levels)",
        "drawn = noise.integer_gaussian(words, bound.shape, self._levels) * "
        "(np.indices(bound.shape)[-1] == 0 if bound.shape else 1)",
    ),
    "noise that is added as floats": (
        "privacy/gate/session.py", "    return total.view(np.int64).reshape(exact.shape)",
        "    return total.view(np.int64).reshape(exact.shape) + (drawn & 0xFFFF) / 2**16",
    ),
    "a tiny budget with the noise of a larger one": (
        "privacy/gate/session.py", "gaussian_step(bound, mu", "gaussian_step(bound, max(mu, 0.01)",
    ),
    "a line at half of its price": (
        "privacy/gate/session.py", "self.ledger += (line,)",
        "self.ledger += (line._replace(loss=line.loss.times(0.5)),)",
    ),
    "words of numpy's global generator": (
        "privacy/noise/words.py", "return _system_words",
        "import numpy.random\n"
        "        return lambda n: numpy.random.randint(0, 2**64, n, dtype=np.uint64)",
    ),
    "one seed at two budgets": (
        "privacy/noise/words.py", "_key, public_key", "_key, public_key[:1]",
    ),
    "any epsilon for NaN": (
        "base.py", "epsilon = check_real",
        "epsilon = 1.0 if self.epsilon != self.epsilon else check_real",
    ),
    # Queries that look too early, or claim what does not hold.
    "iterate that is taken for orthonormal": (
        "queries/rows.py",
        "l2 = C * C * (math.hypot(*grid.norms) if self.neighbours.replace else grid.norms[0])",
        "l2 = self.neighbours.positive(C * C, k)",
    ),
    "moment that is computed before it is paid": (
        "queries/rows.py",
        'return self._square("gram", d, self.neighbours.positive(C * C, d), answer)',
        "early = answer(1e-9)\n        return self._square("
        '"gram", d, self.neighbours.positive(C * C, d), lambda step: early)',
    ),
    "bound from the largest entry": (
        "queries/rows.py",
        'return self._square("gram", d, self.neighbours.positive(C * C, d), answer)',
        "C = min(C, max((float(abs(b).max()) for b in self._source.blocks()), default=C) + 1e-3)\n"
        '        return self._square("gram", d, self.neighbours.positive(C * C, d), answer)',
    ),
    "sum over rows in float32": (
        "queries/rows.py", "block_gram(rows(block)", "block_gram(rows(block).astype(np.float32)",
    ),
    # Formulas and plans: a wrong factor, a root or a square that is missing.
    "a plan lets others fit for nothing": (
        "privacy/ledger/routes.py", "get() is estimator", "get() is not None",
    ),
    "noise of fewer made rows": ("theory/_plan.py", ", delta) * behind", ", delta)"),
    "deltas of fits that are not added": (
        "privacy/accounting/losses.py", "failure + curve(", "curve(",
    ),
    "printed targets that are not cut": (
        "papers/_jain_2021.py", "np.clip(batch.Y[:, :, 0], -zeta, zeta)", "batch.Y[:, :, 0]",
    ),
    "losses of a plan": ("theory/_plan.py", "self.best - score) / gain", "self.best - score)"),
    "noise of printed power steps": (
        "theory/_power.py", "math.log(2 * n_iter))", "math.log(1 + n_iter))",
    ),
    "what a guess of several units is worth": ("theory/_power.py", "ndtr(changes * mu", "ndtr(mu"),
    "ratio at a random start": ("theory/_power.py", "2 * n**2 * (n - 1)", "2 * n**2 * n / 2"),
    "longest row of any iterate": ("theory/_power.py", "sqrt(width * math", "sqrt(math"),
    "noise of the printed start": ("theory/_trace.py", "math.sqrt(rank) * d", "rank * d"),
    "error of the printed descent": ("theory/_trace.py", "q * math.log(d) /", "q /"),
    "lower bound of theorem 5": ("theory/_trace.py", "* epsilon)) ** 2", "* epsilon))"),
    "lower bound of theorem 2": ("theory/_trace.py", "math.sqrt(rank) * power", "power"),
    "useful records": ("theory/_trace.py", "3 * k * math.sqrt(r) * size**3", "3 * k * size**3"),
    "records of the printed start": ("theory/_trace.py", "(condition**2 if", "(condition if"),
}  # fmt: skip


@contextmanager
def planted(bug):
    """Plant a bug in this process: the functions of its module get the code of the slip."""
    file, right, slip = PLANTED[bug]
    module = importlib.import_module(f"skdp.{file.removesuffix('.py').replace('/', '.')}")
    text = Path(module.__file__).read_text()
    assert text.count(right) == 1, bug
    was = dict(_codes(text, module.__file__))
    now = dict(_codes(text.replace(right, slip), module.__file__))
    changed = [(*_function(module, name), code) for name, code in now.items() if code != was[name]]
    before = [function.__code__ for *_, function, _ in changed]
    with ExitStack() as stack:
        try:
            for owner, name, function, code in changed:
                if function.__code__.co_filename == module.__file__:
                    function.__code__ = code
                else:  # the test put another one in its place
                    own = FunctionType(code, vars(module), name)
                    stack.enter_context(mock.patch.object(owner, name, own))
            yield
        finally:
            for (*_, function, _), code in zip(changed, before, strict=True):
                function.__code__ = code


def _codes(text, file):
    """Yield (qualified name, code) of the functions and methods of a source."""
    places = [compile(text, file, "exec", dont_inherit=True)]
    for place in places:
        for code in filter(inspect.iscode, place.co_consts):
            if code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED:
                yield code.co_qualname, code
            else:  # the body of a class
                places.append(code)


def _function(module, name):
    owner, _, last = name.rpartition(".")
    for part in filter(None, owner.split(".")):
        module = getattr(module, part)
    found = vars(module)[last]
    own = (getattr(found, name, None) for name in ("fget", "func", "__func__"))  # of a property ...
    function = inspect.unwrap(next(filter(None, own), found))
    return module, last, function

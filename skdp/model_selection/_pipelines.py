"""Is a pipeline private from end to end? Decided on its steps and parameters, without any data."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.pipeline import FeatureUnion, Pipeline

from skdp.base import BaseDPEstimator
from skdp.exceptions import PrivacyError
from skdp.model_selection._report import PipelineProblem, PipelineReport
from skdp.model_selection._steps import (
    Verdict,
    is_entrywise,
    is_sklearn,
    judge,
    may_be_sparse,
    repeated,
    searched_steps,
    taken_on_trust,
)

__all__ = ["check_pipeline"]

_NORM_UNITS = ("rank_one", "frobenius", "spectral")
_ENTRY_UNITS = ("interaction", "entry", "edge", *_NORM_UNITS)


@dataclass(frozen=True)
class _Flow:
    """What happened to the rows that reach a step, and what is to come."""

    mixed: tuple[str, ...] = ()  # steps so far that mix the entries of a row
    private: str = ""  # the last private step so far
    private_follows: bool = False


class _Walk:
    """Follows the rows through a composition and collects what is found."""

    def __init__(self, trusted) -> None:
        self.trusted = tuple(trusted)
        self.problems: list[PipelineProblem] = []
        self.private: list[tuple[str, BaseDPEstimator]] = []
        self.assumptions: list[str] = []

    def add(self, path, kind, message, remedy):
        self.problems.append(PipelineProblem(path or "pipeline", kind, message, remedy))

    def step(self, path, step, flow: _Flow) -> _Flow:
        """Follow the rows through one step, which may be a composition."""
        if step is None or isinstance(step, str):
            return flow
        if self._is_trusted(path, step):
            self.assumptions.append(f"{path} treats each row by itself, with public parameters.")
            return replace(flow, mixed=(*flow.mixed, path))
        for kind, handler in self._compositions():
            if kind(step):
                return handler(path, step, flow)
        return self._leaf(path, step, flow)

    def _is_trusted(self, path, step):
        names = (path, path.rpartition("__")[2])
        return any(t in names if isinstance(t, str) else type(step) is t for t in self.trusted)

    def _compositions(self):
        return (
            (lambda s: type(s) is Pipeline, self._pipeline),
            (lambda s: type(s) is FeatureUnion, self._union),
            (lambda s: type(s) is ColumnTransformer, self._columns),
            (lambda s: is_sklearn(s, "TransformedTargetRegressor"), self._target),
            (lambda s: is_sklearn(s, "FrozenEstimator"), self._frozen),
            (lambda s: is_sklearn(s, "SelectFromModel"), self._selector),
            (lambda s: is_sklearn(s, "VotingClassifier", "VotingRegressor"), self._voting),
            (lambda s: is_sklearn(s, *_REPEATS), self._repeats),
            (lambda s: is_sklearn(s, *_SEARCHES), self._search),
            (_is_private_search, self._private_search),
        )

    # -- compositions ----------------------------------------------------------------------

    def _pipeline(self, path, pipe, flow):
        if pipe.memory is not None:
            self.add(
                path,
                "stored",
                "memory= writes private rows and exact projections of them to disk.",
                "Set memory=None.",
            )
        for i, (name, step) in enumerate(pipe.steps):
            later = any(_holds_private(other) for _, other in pipe.steps[i + 1 :])
            here = replace(flow, private_follows=flow.private_follows or later)
            after = self.step(_join(path, name), step, here)
            flow = replace(after, private_follows=flow.private_follows)
        return flow

    def _branches(self, path, branches, flow):
        """Follow the same rows through parallel steps."""
        ends = [self.step(_join(path, name), step, flow) for name, step in branches]
        mixed = tuple(dict.fromkeys(step for end in ends for step in end.mixed))
        private = next((end.private for end in ends if end.private), "")
        return replace(flow, mixed=mixed or flow.mixed, private=private or flow.private)

    def _union(self, path, union, flow):
        return self._branches(path, union.transformer_list, flow)

    def _columns(self, path, step, flow):
        branches = [(name, transformer) for name, transformer, _ in step.transformers]
        for name, _, columns in step.transformers:
            if isinstance(columns, make_column_selector):
                self.assumptions.append(f"{path}: the types of the columns are public.")
            if callable(columns) and not isinstance(columns, make_column_selector):
                self.add(
                    _join(path, name),
                    "unknown",
                    "its columns are chosen by a function of the rows.",
                    "Name the columns, or use make_column_selector.",
                )
        branches.append(("remainder", step.remainder))
        sparse = any(may_be_sparse(leaf) for _, branch in branches for leaf in _leaves(branch))
        if sparse and step.sparse_threshold > 0:
            self.add(
                path,
                "format",
                "whether its output is sparse depends on the density of all rows.",
                "Set sparse_threshold=0.",
            )
        return self._branches(path, branches, flow)

    def _target(self, path, step, flow):
        functions = [f for f in (step.func, step.inverse_func) if f is not None]
        unknown = not all(map(is_entrywise, functions))
        verdict = Verdict("entry") if step.transformer is None else judge(step.transformer)
        if verdict.kind not in ("entry", "row") or unknown:
            self.add(
                _join(path, "transformer"),
                "before" if not unknown else "unknown",
                "it transforms y by what it learns from y, or by a function that is not known.",
                "Use func and inverse_func that are numpy ufuncs, or transform y by public "
                "constants; DPRidge has 'target_bounds'.",
            )
        elif (functions or step.transformer is not None) and step.check_inverse:
            self.add(
                path,
                "before",
                "its check of the inverse warns by the values of y.",
                "Set check_inverse=False.",
            )
        if step.regressor is None:  # a default that learns without noise
            return self._leaf(path, step, flow)
        return self.step(_join(path, "regressor"), step.regressor, flow)

    def _frozen(self, path, step, flow):
        private = isinstance(step.estimator, BaseDPEstimator)  # its transform is a BLAS product
        trust = "rounds each row by itself" if private else "was fitted on public data before that"
        self.assumptions.append(f"{path} {trust}.")
        return replace(flow, mixed=(*flow.mixed, path))

    def _selector(self, path, step, flow):
        looks_at_rows = callable(step.max_features)
        if step.prefit or looks_at_rows or not isinstance(step.estimator, BaseDPEstimator):
            return self._leaf(path, step, flow)
        return self.step(_join(path, "estimator"), step.estimator, flow)

    def _voting(self, path, step, flow):
        return self._branches(path, step.estimators, flow)

    def _repeats(self, path, step, flow):
        if step.estimator is None:  # a default that learns without noise
            return self._leaf(path, step, flow)
        if _holds_private(step.estimator):
            self.add(path, "repeated", *repeated(step))
        return self.step(_join(path, "estimator"), step.estimator, flow)

    def _search(self, path, search, flow):
        self.add(
            path or type(search).__name__,
            "scores",
            "it chooses by exact scores on private rows and fits once for each candidate and fold.",
            "Use DPGridSearchCV, or choose the parameters by public knowledge.",
        )
        return self.step(_join(path, "estimator"), search.estimator, flow)

    def _private_search(self, path, search, flow):
        """Its total covers all fits of its estimator, if that is private by itself."""
        inner = _Walk(self.trusted)
        end = inner.step(_join(path, "estimator"), search.estimator, flow)
        for name, step in searched_steps(search):
            inner.step(_join(path, name), step, replace(flow, private_follows=True))
        self.problems += inner.problems
        self.assumptions += inner.assumptions
        if not inner.private:
            self.add(path, "not private", "its estimator has no private step.", "Add one.")
        self._register(path, search, flow)
        return replace(end, private=path or type(search).__name__)

    # -- single steps ----------------------------------------------------------------------

    def _leaf(self, path, step, flow):
        path = path or type(step).__name__
        verdict = judge(step)
        if verdict.kind == "private":
            self._register(path, step, flow)
            return replace(flow, private=path, mixed=(*flow.mixed, path))
        self.assumptions += [f"{path} {text}" for text in taken_on_trust(step, verdict)]
        if verdict.kind in ("entry", "row"):
            return flow if verdict.kind == "entry" else replace(flow, mixed=(*flow.mixed, path))
        where = "after" if flow.private and not flow.private_follows else "before"
        if not flow.private and not flow.private_follows:
            where = "not private"
        kind = "unknown" if verdict.kind == "unknown" else where
        self.add(path, kind, _message(step, verdict, where, flow.private), verdict.remedy)
        return replace(flow, mixed=(*flow.mixed, path))

    def _register(self, path, step, flow):
        path = path or type(step).__name__
        self.private.append((path, step))
        if getattr(step, "epsilon", None) == float("inf"):
            self.add(path, "not private", "epsilon=inf adds no noise.", "Use a finite epsilon.")
        if getattr(step, "random_state", None) is not None:
            self.add(
                path,
                "not private",
                "whoever knows its random_state can remove the noise.",
                "Use random_state=None.",
            )
        if type(step).__module__.partition(".")[0] != "skdp":
            self.assumptions.append(f"{path}: the guarantee of your own {type(step).__name__}.")
        if "classes" in step.get_params(deep=False) and step.classes is None:
            self.assumptions.append(f"{path}: which labels occur in y is public.")
        unit = getattr(step, "privacy_unit", "row")
        if unit in _NORM_UNITS:
            self.assumptions.append(f"{path}: changes have at most the norm 'sensitivity'.")
        if unit in _ENTRY_UNITS and flow.mixed:
            self.add(
                path,
                "unit",
                f"it protects one {unit}, but {', '.join(flow.mixed)} spread a change of one entry "
                "over its row.",
                "Put it first, or protect rows: privacy_unit='row'.",
            )


_REPEATS = (
    "MultiOutputRegressor", "MultiOutputClassifier", "OneVsRestClassifier", "BaggingClassifier",
    "BaggingRegressor",
)  # fmt: skip

_SEARCHES = (
    "GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV",
    "TunedThresholdClassifierCV",
)  # fmt: skip


def _is_private_search(step):
    return isinstance(step, BaseDPEstimator) and hasattr(step, "estimator")


def _message(step, verdict, where, private):
    what = f"{type(step).__name__}: {verdict.reason}"
    if where == "after":
        return (
            f"{what}, from exact projections of private rows. The guarantee of {private} ends with "
            "what that released; one changed row can move this step without bound."
        )
    if where == "before":
        return f"{what}, and the private step behind it does not cover that."
    return f"{what}, and no step is private."


def _join(path, name):
    return f"{path}__{name}" if path else name


def _leaves(step):
    """Yield the steps inside a composition, at any depth."""
    if step is None or isinstance(step, str):
        return
    inner = _inner(step)
    if not inner:
        yield step
    for part in inner:
        yield from _leaves(part)


def _inner(step):
    if isinstance(step, Pipeline):
        return [part for _, part in step.steps]
    if isinstance(step, FeatureUnion):
        return [part for _, part in step.transformer_list]
    if isinstance(step, ColumnTransformer):
        return [*(part for _, part, _ in step.transformers), step.remainder]
    if is_sklearn(step, "FrozenEstimator"):
        return []
    for name in ("estimator", "regressor", "estimators"):
        part = getattr(step, name, None)
        if isinstance(part, Iterable) and not isinstance(part, str):
            return [pair[1] for pair in part]
        if part is not None:
            return [part]
    return []


def _holds_private(step):
    return any(isinstance(leaf, BaseDPEstimator) for leaf in _leaves(step))


def _adjacency(step):
    labels = getattr(step, "privacy_unit", "row") == "label"  # has one adjacency
    return "replace" if labels else str(getattr(step, "adjacency", "add_remove"))


def _spends(step):
    spent = getattr(step, "privacy_spent_", None)
    if spent is not None:
        return f"{type(step).__name__}, spent {spent.sentence()}"
    unit, adjacency = getattr(step, "privacy_unit", "row"), getattr(step, "adjacency", "?")
    budget = f"epsilon={step.epsilon!r}, delta={step.delta!r}"
    return f"{type(step).__name__}, {budget} a fit, for one {unit} ({adjacency})"


def check_pipeline(pipe, *, trusted=(), raise_error=False) -> PipelineReport:
    """Say whether a pipeline is private from end to end, and if not, which steps break it and why.

    A private step protects what *it* releases. A step before it that learns from the rows has
    released them before it; a step behind it that learns is trained on exact projections of them.
    The check looks at steps and parameters only, fitted or not; it never sees data, and spends
    nothing. What it does not know it reports.

    Parameters
    ----------
    pipe : estimator
        A Pipeline, or any composition of FeatureUnion, ColumnTransformer,
        TransformedTargetRegressor, voting, searches and single steps.
    trusted : sequence of str or type, default=()
        Names (or exact classes) of steps that you vouch for: each output row depends on its own
        input row and on public parameters alone.
    raise_error : bool, default=False
        Raise `PrivacyError` with the report if there is a problem.

    Returns
    -------
    report : PipelineReport
        ``report.ok``, ``report.problems``; ``print(report)`` is for people.

    See Also
    --------
    skdp.PrivacyLedger : Adds up what the private steps spend.

    Notes
    -----
    Scores on private rows and ``transform`` of private rows are outside: they are not part of the
    fitted pipeline.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdp import DPRidge, DPTruncatedSVD, check_pipeline
    >>> from skdp.preprocessing import RowClipper
    >>> check_pipeline(make_pipeline(RowClipper(), DPTruncatedSVD(), DPRidge())).ok
    True
    >>> report = check_pipeline(make_pipeline(StandardScaler(), DPTruncatedSVD(), DPRidge()))
    >>> [(problem.step, problem.kind) for problem in report.problems]
    [('standardscaler', 'before')]
    """
    if not hasattr(pipe, "fit") or isinstance(pipe, type):
        raise TypeError(f"check_pipeline needs a pipeline or an estimator. Got {pipe!r} instead.")
    walk = _Walk(trusted)
    walk.step("", pipe, _Flow())
    if not walk.private and not walk.problems:
        walk.add("pipeline", "not private", "no step is private.", "End in a DP estimator.")
    units = {getattr(step, "privacy_unit", "row") for _, step in walk.private}
    if len(units) > 1:
        walk.add(
            "pipeline",
            "unit",
            f"its steps protect different things ({', '.join(sorted(units))}): they do not add up.",
            "Use one privacy_unit throughout.",
        )
    adjacencies = {_adjacency(step) for _, step in walk.private}
    if len(adjacencies) > 1:
        walk.add(
            "pipeline",
            "unit",
            f"its steps have different adjacencies ({', '.join(sorted(adjacencies))}): one makes "
            "the number of rows public, which another protects.",
            "Use one adjacency throughout.",
        )
    private = tuple((path, _spends(step)) for path, step in walk.private)
    report = PipelineReport(tuple(walk.problems), private, tuple(walk.assumptions))
    if raise_error and not report.ok:
        raise PrivacyError(str(report))
    return report

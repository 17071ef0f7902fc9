"""Which steps of a pipeline use private rows without a guarantee, and what to do instead."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skdp.base import BaseDPEstimator
from skdp.exceptions import PrivacyError
from skdp.model_selection._cost import dp_parts, set_budget
from skdp.model_selection._proven import concerns, inner_steps, line_of
from skdp.model_selection.selection_laws import ideal_budget
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.accounting.losses import mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import html_table
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.units import unit_of

# What `check_pipeline` reports.

_STEPS = "Private steps, whose budgets add up (with_budget sets the total, PrivacyLedger shows it):"


class PipelineProblem(NamedTuple):
    """One reason why a pipeline is not private from end to end.

    Attributes
    ----------
    step : str
        Where: names of steps, joined by "__" as in ``set_params``.
    kind : str
        "not verified" (not in the table of tested steps), "after" (the same, and it receives exact
        projections of private rows), "not private" (no step is, or one has no noise), "unit" (the
        privacy unit changes, or differs between steps), "holds private" (the fitted object contains
        more than was released) or "refused" (a search whose parameters `fit` refuses).
    message : str
        What is wrong.
    remedy : str
        What to do.
    """

    step: str
    kind: str
    message: str
    remedy: str


@dataclass(frozen=True)
class PipelineReport:
    """What `check_pipeline` found; print it.

    Attributes
    ----------
    problems : tuple of PipelineProblem
        Empty if the pipeline is private from end to end.
    private_steps : tuple of (str, str)
        The private steps and what each spends.
    assumptions : tuple of str
        The statements of the caller on which the result rests.
    """

    problems: tuple[PipelineProblem, ...]
    private_steps: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        n = len(self.problems)
        head = f"NOT private: {n} problem{'s' * (n > 1)}" if n else "private from end to end"
        lines = [f"The pipeline is {head}."]
        for problem in self.problems:
            lines.append(f"- {problem.step} [{problem.kind}]: {problem.message}")
            lines.append(f"  Remedy: {problem.remedy}")
        if self.private_steps:
            lines.append(_STEPS)
            lines += [f"- {step}: {spends}" for step, spends in self.private_steps]
        lines += [f"Assumed, not checked: {text}" for text in self.assumptions]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(str(self).partition(chr(10))[0])}</b></p>"]
        if self.problems:
            parts.append(html_table(self.problems, PipelineProblem._fields))
        if self.private_steps:
            parts.append(f"<p>{_STEPS}</p>")
            parts.append(html_table(self.private_steps, ("step", "spends")))
        parts += [f"<p>Assumed, not checked: {html.escape(text)}</p>" for text in self.assumptions]
        return "".join(parts)


# Checking whether a pipeline is private from end to end, from its steps and parameters alone.


class _Flow(NamedTuple):
    """The history of the rows that reach a step."""

    touched: tuple[str, ...] = ()  # steps so far that change rows
    private: str = ""  # the last private step so far
    column: Any = None  # the column that all of them leave unchanged, by name or position

    def through(self, path, step=None):
        column = step.group_column if type(step) is DPStandardScaler else None
        column = column if self.keeps(column) else None
        return self._replace(touched=(*self.touched, path), column=column)

    def keeps(self, column):
        """Whether a column here is one of the input, untouched."""
        return not self.touched or (type(column) is type(self.column) and column == self.column)


def _several(steps):
    """Return what is named, one or several, as a tuple."""
    return (steps,) if isinstance(steps, str | type) else tuple(steps)


class _Walk:
    """Follows the rows through a composition and collects what is found."""

    def __init__(self, assume_rowwise):
        self.assume_rowwise = _several(assume_rowwise)
        self.problems: list[PipelineProblem] = []
        self.private: list[tuple[str, BaseDPEstimator]] = []
        self.assumptions: list[str] = []

    def add(self, path, kind, message, remedy):
        self.problems.append(PipelineProblem(path or "pipeline", kind, message, remedy))

    def step(self, path, step, flow: _Flow) -> _Flow:
        """Follow the rows through one step, which may be a composition."""
        if step is None or isinstance(step, str):
            return flow
        name = path or type(step).__name__
        names = (path, path.rpartition("__")[2])
        if any(t in names if isinstance(t, str) else type(step) is t for t in self.assume_rowwise):
            self.assumptions.append(f"{name} treats each row by itself, with public parameters.")
            return flow.through(name)
        for reason, remedy in concerns(step):
            self._concern(name, step, flow, reason, remedy)
        if isinstance(step, BaseDPEstimator):
            return self._private(name, step, flow)
        line = line_of(step)
        if line is not None and line.parts is not None:
            return self._parts(path, step, flow)
        if line is not None and line.given:
            self.assumptions.append(f"{name} meets {line.given}.")
        return flow.through(name)

    def _concern(self, name, step, flow, reason, remedy):
        kind, message = "not verified", f"{type(step).__name__} {reason}."
        if flow.private:
            kind = "after"
            message += (
                f" It receives exact projections of private rows, which {flow.private} does not "
                "cover: one row can change what it learns without bound."
            )
        self.add(name, kind, message, remedy)

    def _parts(self, path, step, flow):
        """Follow the rows through parts: from one to the next, or the same rows through each."""
        ends = []
        for name, part in inner_steps(step):
            ends.append(self.step(f"{path}__{name}" if path else name, part, flow))
            if type(step) is Pipeline:
                flow = ends[-1]
        touched = tuple(dict.fromkeys(name for end in ends for name in end.touched))
        private = next((end.private for end in reversed(ends) if end.private), flow.private)
        if type(step) is not Pipeline:  # columns were chosen, or put side by side
            return _Flow((*touched, path or type(step).__name__), private)
        return _Flow(touched, private, flow.column)

    # -- private steps ---------------------------------------------------------------------

    def _private(self, name, step, flow):
        keeps = step.private_state or ("" if hasattr(step, "privacy_spent_") else step._fit_keeps)
        if hasattr(step, "estimator"):  # a search: its total covers what is private inside
            if not self._inside(name, step, flow):
                return flow.through(name)
        elif keeps:
            holds = f"the fitted object and its pickle hold {keeps}."
            self.add(name, "holds private", holds, step._publish)
        self.private.append((name, step))
        if getattr(step, "epsilon", None) == float("inf"):
            self.add(name, "not private", "epsilon=inf adds no noise.", "Use a finite epsilon.")
        if getattr(step, "random_state", None) is not None:
            message = "anyone who knows its random_state can subtract the noise."
            self.add(name, "not private", message, "Use random_state=None.")
        for message, remedy in _other_units(step, flow):
            self.add(name, "unit", message, remedy)
        if flow.touched and getattr(step, "group_column", None) is not None:
            self.assumptions.append(
                f"{name}: {', '.join(flow.touched)} keeps the values of the group_column. It does "
                "if they are whole numbers below 2**53. Text such as '07' may become a number."
            )
        self.assumptions += [f"{name}: {text}" for text in _taken_on_trust(step)]
        return flow.through(name, step)._replace(private=name)

    def _inside(self, name, search, flow):
        """Follow the rows into a search; return whether anything in it is private."""
        inner = _Walk(self.assume_rowwise + _several(getattr(search, "assume_rowwise", ())))
        inner.step(f"{name}__estimator", search.estimator, flow)
        for parameter, step in _searched_steps(search):
            inner.step(f"{name}__{parameter}", step, flow)
        self.problems += inner.problems
        self.assumptions += inner.assumptions
        if not inner.private:
            self.add(name, "not private", "its estimator has no private step.", "Add one.")
        elif not inner.problems:
            try:
                search._checked()
            except (PrivacyError, TypeError, ValueError) as error:
                self.add(name, "refused", "its fit would raise an error.", str(error))
        return bool(inner.private)


def _searched_steps(search):
    """Yield (parameter, value) for the values of a grid that are steps themselves."""
    params = getattr(search, "param_grid", None) or getattr(search, "param_distributions", {})
    for grid in [params] if isinstance(params, Mapping) else params:
        for name, values in grid.items():
            for value in values if isinstance(values, Iterable) else ():
                if hasattr(value, "fit"):
                    yield name, value


def _other_units(step, flow):
    """Yield problems with earlier steps that change the privacy unit of a private step."""
    if not flow.touched:
        return
    before, unit = ", ".join(flow.touched), getattr(step, "privacy_unit", "row")
    if unit_of(step).bound is not None:  # of an entry, or of a change of many
        yield (
            f"it protects one {unit}, but {before} may enlarge a change of one entry.",
            "Put it first, or protect rows: privacy_unit='row'.",
        )
    column = getattr(step, "group_column", None)
    if column is not None and not flow.keeps(column):
        yield (
            f"its group_column went through {before}, which may rename, join or split users.",
            "Put it first, or pass 'groups' (metadata routing) in place of group_column.",
        )


def _taken_on_trust(step):
    if type(step).__module__.partition(".")[0] != "skdp":
        yield f"the guarantee of your own {type(step).__name__}."
    if "classes" in step.get_params(deep=False) and step.classes is None:
        yield "the set of labels in y is public."
    if unit_of(step).contract:
        yield "a change has a norm of at most 'unit_bound'."


def _spends(step):
    if hasattr(step, "privacy_spent_"):
        return f"{type(step).__name__}, spent {step.privacy_spent_.statement()}"
    unit, adjacency = getattr(step, "privacy_unit", "row"), getattr(step, "adjacency", "?")
    budget = f"epsilon={step.epsilon!r}, delta={step.delta!r}"
    return f"{type(step).__name__}, {budget} a fit, for one {unit} ({adjacency})"


def _together(walk, parts):
    """Add problems of the pipeline as a whole; `parts` are all private estimators inside it."""
    steps = [step for _, step in walk.private]
    if not steps:
        inside = "its private estimators are fitted by a step that is not verified."
        why = inside if parts else "no step is private."
        walk.add("pipeline", "not private", why, "End in a DP estimator.")
    for parameter, usual, what, why in _THROUGHOUT:
        found = {str(getattr(step, parameter, usual)) for step in steps}
        if len(found) > 1:
            message = f"its steps {what} ({', '.join(sorted(found))}): {why}."
            walk.add("pipeline", "unit", message, f"Use one {parameter} throughout.")


# What all private steps have in common: (parameter, usual value, what else they do, why not).
_THROUGHOUT = (
    ("privacy_unit", "row", "protect different things", "they do not add up"),
    ("adjacency", "add_remove", "have different adjacencies",
     "one makes the number of rows public, which another protects"),
)  # fmt: skip


def check_pipeline(
    pipe: Any, *, assume_rowwise: Any = (), raise_error: bool = False
) -> PipelineReport:
    """Check whether a pipeline is private from end to end, and name the steps that are not.

    A private step covers what *it* releases. An earlier step that learns from the rows may publish
    them; a later one is trained on exact projections of them. Private steps pass, and so do those
    of a short table with proofs and tests; all others are reported as not verified. The check reads
    steps and parameters, fitted or not. It reads no data and spends no budget.

    Parameters
    ----------
    pipe : estimator
        A Pipeline, or any composition of steps.
    assume_rowwise : str, type or sequence of these, default=()
        Names (or exact classes) of steps for which you state that each output row depends on its
        own input row and on public parameters alone.
    raise_error : bool, default=False
        Raise `PrivacyError` with the report if there is a problem.

    Returns
    -------
    report : PipelineReport
        ``report.ok``, ``report.problems``; print it to read it.

    See Also
    --------
    skdp.PrivacyLedger : Adds up what the private steps spend.

    Notes
    -----
    ``score`` and ``transform`` of private rows are not covered. Types and names of the columns, and
    the format of X, count as public.

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
    [('standardscaler', 'not verified')]
    """
    if not hasattr(pipe, "fit") or isinstance(pipe, type):
        raise TypeError(f"check_pipeline needs a pipeline or an estimator. Got {pipe!r} instead.")
    walk = _Walk(assume_rowwise)
    walk.step("", pipe, _Flow())
    _together(walk, dp_parts(pipe))
    private = tuple((path, _spends(step)) for path, step in walk.private)
    report = PipelineReport(tuple(walk.problems), private, tuple(walk.assumptions))
    if raise_error and not report.ok:
        raise PrivacyError(str(report))
    return report


def check_searchable(estimator, assume_rowwise):
    """Refuse what a private search cannot fit within its total: any step that is not verified."""
    if isinstance(estimator, BaseDPEstimator):
        return
    if type(estimator) is not Pipeline:
        raise PrivacyError(
            f"{type(estimator).__name__} is neither a private estimator nor a Pipeline that ends "
            "in one. Give the private estimator itself."
        )
    walk = _Walk(assume_rowwise)
    walk.step("", estimator, _Flow())
    _together(walk, [])
    faults = [problem for problem in walk.problems if problem.kind in _SEARCH_REFUSES]
    if faults or not walk.private:
        raise PrivacyError(
            "A private search and with_budget need verified steps, see check_pipeline. "
            + " ".join(f"{fault.step}: {fault.message} {fault.remedy}" for fault in walk.problems)
        )
    parts = dict(estimator.steps)
    if inside := [name for name, _ in walk.private if name not in parts]:
        raise PrivacyError(
            f"{inside[0]} is private inside another step, where neither a search nor with_budget "
            "gives it its budget. Make it a step of the Pipeline itself, or set its epsilon and "
            "fit inside PrivacyLedger.charge."
        )


# Problems that a search refuses. Others do not matter: the search sets the noise and the budgets of
# the steps, and reports itself what private state its model holds.
_SEARCH_REFUSES = ("not verified", "after", "unit")


def with_budget(
    estimator: Any, epsilon: float = 1.0, delta: float = 1e-6, *, assume_rowwise: Iterable[Any] = ()
) -> Any:
    """Return a clone of a pipeline whose private steps spend one (epsilon, delta) together.

    Each step gets a part of mu squared (of epsilon where delta is 0) in proportion to the budget
    that it has: of three equal ones a third.

    Parameters
    ----------
    estimator : Pipeline or private estimator
        What `check_pipeline` finds private from end to end, apart from its budgets.
    epsilon, delta : float, default=1.0, 1e-6
        The total of one call of ``fit``. An epsilon above about 35 (at the default delta) has the
        noise of 35.
    assume_rowwise : iterable of str or type, default=()
        Steps for which you state that they treat each row by itself, as in `check_pipeline`.

    Returns
    -------
    estimator : Pipeline or private estimator
        Not fitted.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from skdp import DPPCA, DPRidge
    >>> from skdp.model_selection import with_budget
    >>> pipe = with_budget(make_pipeline(DPPCA(2), DPRidge()), epsilon=1.0)
    >>> [round(step.epsilon, 2) for _, step in pipe.steps]
    [0.69, 0.69]
    """
    check_searchable(estimator, assume_rowwise)
    copy = clone(estimator)
    parts, budget = dp_parts(copy), PrivacyBudget(epsilon, delta)
    for part in parts:
        gaussian = part._budget_kinds() == ("gaussian",) and not hasattr(part, "planned_losses")
        if not (gaussian if delta else part._offers_pure_dp()):
            raise PrivacyError(
                f"with_budget needs {'Gaussian' if delta else 'pure'} fits, and the noise of "
                f"{type(part).__name__} may be of another kind. Set its budget by hand, and fit "
                "inside a PrivacyLedger."
            )
    if delta and not budget.exact:
        ideal = ideal_budget(budget.epsilon, budget.delta, 1.0, len(parts))
        set_budget(parts, "gaussian", mu_from_epsilon_delta(*ideal), delta)
    else:
        set_budget(parts, "pure", budget.epsilon, delta)
    return copy

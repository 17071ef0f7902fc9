"""What `check_pipeline` reports."""

import html
from dataclasses import dataclass
from typing import NamedTuple

from skdp._tables import html_table


class PipelineProblem(NamedTuple):
    """One reason why a pipeline is not private from end to end.

    Attributes
    ----------
    step : str
        Where: names of steps, joined by "__" as in ``set_params``.
    kind : str
        "not verified" (not in the table of steps that are proven to use no other row), "after" (not
        verified either, and it sees exact projections of private rows), "not private" (no step is,
        or one has no noise), "unit" (what is protected changes or does not add up) or "holds
        private" (the fitted object must not be published as it is).
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
        What the verdict takes on trust.
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
        head = "private from end to end" if self.ok else f"NOT private: {_many(self.problems)}"
        lines = [f"The pipeline is {head}."]
        for problem in self.problems:
            lines.append(f"- {problem.step} [{problem.kind}]: {problem.message}")
            lines.append(f"  Remedy: {problem.remedy}")
        if self.private_steps:
            lines.append("Private steps, whose budgets add up (see PrivacyLedger):")
            lines += [f"- {step}: {spends}" for step, spends in self.private_steps]
        lines += [f"Taken on trust: {text}" for text in self.assumptions]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(str(self).partition(chr(10))[0])}</b></p>"]
        if self.problems:
            parts.append(html_table(self.problems, PipelineProblem._fields))
        if self.private_steps:
            parts.append("<p>Private steps, whose budgets add up (see PrivacyLedger):</p>")
            parts.append(html_table(self.private_steps, ("step", "spends")))
        parts += [f"<p>Taken on trust: {html.escape(text)}</p>" for text in self.assumptions]
        return "".join(parts)


def _many(problems):
    return f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")

"""Means of rows and columns in a trace regression of single entries, such as ratings."""

from typing import NamedTuple

from skdp.solvers.means import Means, MeansFacts, energies
from skdp.solvers.trace import TraceFacts, zero_fit

# Of what gradients have (or the start, if it is all): a first look at means.
_FIRST = 0.06
TOO_FEW = 0.75  # of the records from which a matrix is useful: below, means get what it would have
_ALONE = "its records are too few for a matrix of this size"


class Looked(NamedTuple):
    """What is known of means, and what is left for the matrix beside them."""

    facts: TraceFacts
    means: Means

    @property
    def alone(self):
        """Whether no matrix is looked for, by public numbers and released ones."""
        return self.facts.n < TOO_FEW * self.facts.useful

    def beside(self):
        """Return the means of rows and of columns; None if there are none."""
        return (self.means.rows.means, self.means.columns.means) if self.means.found else None

    def before(self, ask):
        """Return what is asked of records whose targets are seen beside the means."""
        beside = self.beside()
        return ask if beside is None else ask.beside_means(*beside)

    def fit(self, ask):
        """Spend on means what the matrix would have; return the fit that has none."""
        self.means.release(ask, self.facts.init + self.facts.gradients)
        shape, rank = self.facts.shape, self.facts.rank
        return zero_fit(shape, rank, _ALONE, noise_sd=self.means.sd)


def has_means(estimator, shape, *, sparse):
    """Return whether means are part of the model: for CSR rows, which single entries come in."""
    return estimator.fit_means and estimator.fit_intercept and sparse and min(shape) > 1


def first_shares(facts):
    """Return the share of a first look at means, and what is left for the matrix."""
    of = "gradients" if facts.gradients else "init"
    share = _FIRST * getattr(facts, of)
    return share, facts._replace(**{of: getattr(facts, of) - share})


def look_at_means(ask, facts, design, centre):
    """Release first means of columns and rows."""
    rows, columns = energies(design, facts.shape, facts.n)
    known = MeansFacts(rows, columns, facts.n, centre.value, centre.sd, facts.unit_noise)
    share, left = first_shares(facts)
    looked = Looked(left, Means(known))
    looked.means.release(ask, share)
    if not looked.alone:
        looked.means.drop_what_is_low_rank()
    return looked


def doubt_of(fit, looked):
    """Say why a fit has no matrix, if it has none."""
    if not fit.zero_because:
        return ""
    if looked is not None and looked.means.found:
        return f"finds means of rows and columns, and no matrix beside them: {fit.zero_because}"
    return f"returns the zero matrix: {fit.zero_because}"

"""What a score plot is asked for: its plane, its window, its classes, and what they cost."""

import math

import numpy as np
from sklearn.utils.validation import check_array

from skdp._labels import check_classes, class_numbers
from skdp._validation import check_int, check_n_jobs, check_option, check_split
from skdp.queries.plane import Frame


class ScoreParametersMixin:
    """The parameters of score plots, checked before anything is spent."""

    def _check_parameters(self):
        check_option(self, "kind", ("auto", "density", "ellipse"))
        check_int(self, "n_bins", 2, also=("auto",))
        if self.n_bins != "auto" and self.n_bins > 1000:
            raise ValueError(f"'n_bins' must be at most 1000. Got {self.n_bins!r}.")
        check_n_jobs(self)
        check_split(self, self._default_shares())
        self._classes()
        if not self._learns_limits():
            self._public_frame()

    def _offers_pure_dp(self):
        return self.kind == "density" and not self._learns_limits()

    def _learns_limits(self):
        return isinstance(self.limits, str) and self.limits == "auto"

    def _classes(self):
        return () if self.classes is None else check_classes(self, least=1)

    def _counts_first(self):
        """Whether class sizes are released first, as far as a parameter asks for them."""
        if self.kind == "ellipse" or (self.kind == "density" and self.n_bins != "auto"):
            return False
        return self.classes is not None or self.adjacency == "add_remove"

    def _default_shares(self):
        shares = {"frame": 0.2} if self._learns_limits() else {}
        if self._counts_first():
            shares["counts"] = 0.05
        return shares | {"density": 1 - math.fsum(shares.values())}

    def _plane(self, d):
        """Return the public directions and the public point that is subtracted."""
        axes = self.axes
        if axes is None and d < 2:
            raise ValueError(
                f"{type(self).__name__} shows a plane, and X has 1 feature(s): at least 2 are "
                "needed."
            )
        axes = np.eye(2, d) if axes is None else check_array(axes, input_name="axes")
        center = np.zeros(d) if self.center is None else self.center
        center = check_array(center, ensure_2d=False, dtype=np.float64, input_name="center")
        axes = axes.astype(np.float64)
        if axes.shape != (2, d) or center.shape != (d,) or not np.all(np.linalg.norm(axes, axis=1)):
            raise ValueError(
                f"'axes' must be two directions and 'center' a point of {d} features. Got shapes "
                f"{axes.shape} and {center.shape}."
            )
        return axes, center

    def _public_frame(self):
        try:
            limits = np.asarray(self.limits, np.float64)
        except (TypeError, ValueError):
            limits = np.zeros(0)
        if (
            limits.shape != (2, 2)
            or not np.isfinite(limits).all()
            or not np.all(limits[:, 1] - limits[:, 0] >= 1e-60)
        ):
            raise ValueError(
                "The 'limits' parameter of DPScoreDensity must be 'auto' or ((low, high), (low, "
                f"high)) with low < high. Got {self.limits!r} instead."
            )
        low, high = limits.T
        half = high / 2 - low / 2
        return Frame(low + half, half)


def cell_noise(estimator, session, share):
    """Return the noise that one cell would have: a public number."""
    if session.budget.exact:
        return 0.0
    size = math.sqrt(2.0) if estimator.adjacency == "replace" else 1.0
    if session.budget.pure:
        return size * size * math.sqrt(2.0) / (session.budget.pure_epsilon * share)
    return size * session.noise_multiplier / math.sqrt(share)


def class_column(y, classes):
    """Return the number of the class of each label, -1 for none, as a column."""
    return class_numbers(y, classes).astype(np.float64)[:, None]

"""A linear model of all users, where their own models start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.local_fits import times_powers
from skdp.solvers.user_batches import UserBatch

FloatArray = NDArray[np.float64]
_FAR = 1e9  # a prediction beyond this many times a user's own scale says nothing


class Doubt(NamedTuple):
    """What is known of the noise in a released model.

    Attributes
    ----------
    covariance : array of shape (d, d)
        Of the noise of coefficients, summed over the outputs.
    center : array of shape (d,)
        About where rows lie: a prediction there stays as it is.
    """

    covariance: FloatArray
    center: FloatArray


class GlobalModel(NamedTuple):
    """A released linear model of all users.

    Attributes
    ----------
    coef : array of shape (d, p)
        Coefficients.
    intercept : array of shape (p,)
        Intercepts.
    noise : float
        Norm of the noise in it relative to its bound, where it is a mean of bounded heads.
    doubt : Doubt or None
        Its noise, where it is known.
    """

    coef: FloatArray
    intercept: FloatArray
    noise: float = 0.0
    doubt: Doubt | None = None

    def predictions(self, batch: UserBatch) -> FloatArray:
        """Predictions of a batch, in the unit of each user's targets."""
        shift = batch.x_exponent - batch.y_exponent
        values = times_powers(np.matmul(batch.X, self.coef), shift)
        values = values + np.ldexp(self.intercept[None, None], -batch.y_exponent[:, None, None])
        return np.asarray(np.clip(np.nan_to_num(values, nan=0.0), -_FAR, _FAR))

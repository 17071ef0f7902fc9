"""Pictures of what was released, as scikit-learn's Displays.

Each display is made by ``from_estimator``, keeps its numbers as attributes, and is drawn again by
``plot(ax=None)``, which sets ``ax_`` and ``figure_``. All show released values alone. Needs
matplotlib (``pip install skdp[plot]``).
"""

from skdp.plotting._released import ScoreDisplay, SpectrumDisplay

__all__ = ["ScoreDisplay", "SpectrumDisplay"]

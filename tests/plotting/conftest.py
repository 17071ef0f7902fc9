"""A canvas for each test: pictures are drawn, and none is shown or left open."""

import pytest


@pytest.fixture(autouse=True)
def canvas():
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt  # not where tests are merely collected

    yield plt
    plt.close("all")

"""The demonstration of a secure sum, over processes."""

import pytest

from skdp.federated import (
    demo,
)


@pytest.mark.slow
def test_demo_of_separate_processes():
    lines = []
    seconds = demo.run(4, 100, 3, 1, lines.append)
    assert len(seconds) == 3
    text = "".join(lines)
    assert text.count("equal to the plain sum bit for bit") == 3
    assert "sum of 3 contributions" in text and "chi-square" in text


def test_demo_is_bounded():
    with pytest.raises(ValueError, match="at most 40"):
        demo.run(41)

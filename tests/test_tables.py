"""Tables as text."""

from skdp.privacy.accounting.receipts import aligned


def test_columns_stand_below_each_other():
    rows = [("release", "share", "note"), ("sum", "12.5%", ""), ("a long one", "5%", "twice")]
    assert aligned(rows) == [
        "release     share  note",
        "sum         12.5%",
        "a long one  5%     twice",
    ]

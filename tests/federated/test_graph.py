"""The graph of neighbours: who masks with whom."""

import itertools

import pytest

from skdp.federated._crypto import circulant


def is_connected(graph, nodes):
    reached, pending = set(), [min(nodes)]
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending.extend(set(graph.neighbours[node]) & nodes)
    return reached == nodes


@pytest.mark.parametrize(("n", "degree"), [(9, 4), (10, 6), (11, 2), (7, 6), (8, 7), (2, 1)])
def test_no_colluders_and_drop_outs_cut_the_graph(n, degree):
    """k >= T + F + 1: whichever T + F clients are taken out, the others stay connected."""
    graph = circulant(n, degree, b"run")
    for node, row in enumerate(graph.neighbours):
        assert len(set(row)) == degree and node not in row
        assert all(node in graph.neighbours[other] for other in row)
        assert graph.slots[node] == {other: k for k, other in enumerate(row, 1)}
    for gone in itertools.combinations(range(n), degree - 1):
        assert is_connected(graph, set(range(n)) - set(gone))
    if degree < n - 1:
        cut = set(range(n)) - set(graph.neighbours[0])
        assert not is_connected(graph, cut)  # k taken out are too many: the bound is tight


def test_order_is_the_runs():
    graphs = {run: circulant(100, 10, run).neighbours for run in (b"a", b"b")}
    assert graphs[b"a"] == circulant(100, 10, b"a").neighbours
    assert graphs[b"a"] != graphs[b"b"]
    assert sorted(graphs[b"a"][0]) != [1, 2, 3, 4, 5, 95, 96, 97, 98, 99]

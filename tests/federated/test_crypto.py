"""Keys, masks, seals, shares of secrets and the graph, against published vectors and by force."""

import itertools
import os

import numpy as np
import pytest

from skdp._limits import CACHED
from skdp.federated import InvalidMessageError
from skdp.federated import _crypto as crypto
from skdp.federated import _messages as wire
from skdp.federated._crypto import PRIME, circulant, combine, mask, split
from skdp.federated.aggregation import commitment, pair_key, sealing_key, self_key
from tools.outcomes import refuses


def test_hkdf_is_the_one_of_rfc_5869():
    key = crypto.derive(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert key.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_x25519_is_the_one_of_rfc_7748():
    one = "77076d0a7318a57d3c16c17251b26645df4c2f92ebc099ac4a4c9c5f3f1d2f2a"
    other = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
    alice, bob = (crypto.KeyPair(bytes.fromhex(secret)) for secret in (one, other))
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert alice.agree(bob.public) == bob.agree(alice.public)
    assert alice.secret.hex() not in repr(alice)


def test_keys_are_bound_to_everything():
    asked = [(b"question", (6, 1, 1), 10), (b"question", (6, 1, 1), 11)]
    asked += [(b"question?", (6, 1, 1), 10), (b"question", (6, 1, 0), 10)]
    opening, *others = (wire.Question(*each) for each in asked)
    steps = [(b"run", 0), (b"rum", 0), (b"ru", 0), (b"run", 1)]
    contexts = [wire.context(*step, opening) for step in steps]
    contexts += [wire.context(b"run", 0, other) for other in others]
    keys = [
        key
        for context in contexts
        for key in (
            *(pair_key(b"s" * 32, context, 1, other) for other in (2, 3)),
            *(sealing_key(b"s" * 32, context, *pair) for pair in ((1, 2), (2, 1), (1, 3))),
            *(self_key(b"s" * 32, context, client) for client in (1, 2)),
            *(commitment(b"s" * 32, context, client) for client in (1, 2)),
        )
    ]
    assert len(set(keys)) == len(keys) == 63
    assert pair_key(b"s" * 32, contexts[0], 1, 2) == pair_key(b"s" * 32, contexts[0], 2, 1)


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    crypto.library.cache_clear()
    refuses(ImportError, r"pip install 'skdp\[federated\]'", crypto.library, "exceptions")


# Masks


def test_masks_are_chacha20_of_rfc_8439():
    total = np.zeros(8, dtype=np.uint64)
    mask(np.add, total, bytes(32))
    first = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    last = "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    assert total.astype("<u8").tobytes().hex() == first + last


def test_masks_cancel_in_pieces():
    for size in (1, CACHED, CACHED + 1, 2 * CACHED + 7):
        total = np.arange(size, dtype=np.uint64)
        mask(np.add, total, b"k" * 32)
        whole = total.copy()
        mask(np.subtract, total, b"k" * 32)
        np.testing.assert_array_equal(total, np.arange(size, dtype=np.uint64))
        whole -= np.arange(size, dtype=np.uint64)
        assert len(np.unique(whole)) == size  # no piece of the stream comes twice


# The graph of neighbours: who masks with whom


def is_connected(graph, nodes):
    reached, pending = set(), [min(nodes)]
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending.extend(set(graph.neighbours[node]) & nodes)
    return reached == nodes


@pytest.mark.parametrize(("n", "degree"), [(9, 4), (10, 6), (11, 2), (7, 6), (8, 7), (2, 1)])
def test_colluders_and_drop_outs_never_disconnect_the_graph(n, degree):
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


# Shamir's sharing: any threshold of shares gives the secret, fewer are jointly uniform


def test_prime_is_prime():
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 100):  # Miller-Rabin
        powers = [pow(base, odd << k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert PRIME > 2**256


@pytest.mark.parametrize(("n", "threshold"), [(1, 1), (3, 2), (6, 4), (6, 6), (24, 14)])
@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_any_threshold_of_shares_gives_the_secret(n, threshold, secret):
    shares = dict(enumerate(split(secret, n, threshold), 1))
    assert {len(share) for share in shares.values()} == {33}
    subsets = itertools.islice(itertools.combinations(shares, threshold), 40)
    for points in [*subsets, tuple(sorted(shares))[-threshold:]]:
        assert combine({x: shares[x] for x in points}, threshold) == secret
    with pytest.raises(InvalidMessageError, match="not enough"):
        combine(dict(list(shares.items())[: threshold - 1]), threshold)


def coefficients(shares):
    """Solve for the polynomial through the shares at 1..t: constant term first."""
    t = len(shares)
    rows = [
        [pow(x, j, PRIME) for j in range(t)] + [int.from_bytes(share, "little")]
        for x, share in enumerate(shares, 1)
    ]
    for i in range(t):  # Gauss and Jordan, modulo the prime
        inverse = pow(rows[i][i], -1, PRIME)
        rows[i] = [value * inverse % PRIME for value in rows[i]]
        for j in range(t):
            if j != i:
                factor = rows[j][i]
                pairs = zip(rows[j], rows[i], strict=True)
                rows[j] = [(a - factor * b) % PRIME for a, b in pairs]
    return [row[-1] for row in rows]


def test_each_coefficient_has_random_bytes_of_its_own(monkeypatch):
    """Then t - 1 shares are jointly uniform, whatever the secret."""
    t, block = 5, 48
    drawn = bytearray(os.urandom(block * (t - 1)))

    def urandom(n):
        assert n == len(drawn), "fewer bytes than coefficients need"
        return bytes(drawn)

    monkeypatch.setattr("skdp.federated._crypto.os.urandom", urandom)
    before, moved = coefficients(split(bytes(range(32)), t, t)), []
    assert before[0] == int.from_bytes(bytes(range(32)), "little")
    assert len(set(before)) == t
    for i in range(t - 1):
        drawn[block * i] ^= 1
        after = coefficients(split(bytes(range(32)), t, t))
        moved += [[j for j in range(t) if before[j] != after[j]]]
        drawn[block * i] ^= 1
    assert sorted(moved) == [[j] for j in range(1, t)]


def test_fewer_shares_fit_every_secret():
    """t - 1 shares and any other secret lie on one polynomial: the shares reveal nothing."""
    shares = dict(enumerate(split(bytes(32), 5, 3), 1))
    for other in (1, 2**255, 2**256 - 1):
        # Solve for the share at 3 that would make shares 1 and 2 come from `other`.
        first, second = (int.from_bytes(shares[x], "little") for x in (1, 2))
        third = (other - 3 * first + 3 * second) % PRIME  # weights at zero: 3, -3, 1
        forged = {1: shares[1], 2: shares[2], 3: third.to_bytes(33, "little")}
        assert combine(forged, 3) == other.to_bytes(32, "little")


def test_shares_are_fresh_and_uniform(fixed_entropy, check_uniform):
    shares = [split(bytes(32), 4, 3) for _ in range(2000)]
    assert len({share for row in shares for share in row}) == 8000
    for column in range(4):
        check_uniform(b"".join(row[column][:32] for row in shares))


def test_shares_that_do_not_belong_together():
    for secret, slope in ((2**256, 3), (PRIME - 1, 5)):  # no 256 bits
        shares = {x: ((secret + slope * x) % PRIME).to_bytes(33, "little") for x in (1, 2)}
        refuses(InvalidMessageError, "do not belong together", combine, shares, 2)
    shares = dict(enumerate(split(bytes(32), 3, 2), 1))
    for value in (PRIME, 2**264 - 1):  # no residue
        with pytest.raises(InvalidMessageError, match="do not belong together"):
            combine(shares | {1: value.to_bytes(33, "little")}, 2)
    for arguments in ((bytes(31), 3, 2), (bytes(32), 3, 4), (bytes(32), 3, 0)):
        refuses(ValueError, "32 bytes", split, *arguments)

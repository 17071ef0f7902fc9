"""Shamir's sharing: any threshold of shares gives the secret, fewer are jointly uniform."""

import itertools
import os

import pytest

from skdp.federated import MessageRefused
from skdp.federated._crypto import PRIME, combine, split


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
    with pytest.raises(MessageRefused, match="not enough"):
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


def test_coefficients_are_jointly_uniform(fixed_entropy, check_uniform):
    """Differences of two coefficients of one secret are uniform as well."""
    found = [coefficients(split(bytes(32), 4, 4)) for _ in range(600)]
    for i, j in itertools.combinations(range(1, 4), 2):
        gaps = [((row[i] - row[j]) % PRIME).to_bytes(33, "little")[:32] for row in found]
        check_uniform(b"".join(gaps))


def test_fewer_shares_fit_every_secret():
    """t - 1 shares and any other secret lie on one polynomial: the shares say nothing."""
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
        with pytest.raises(MessageRefused, match="do not belong together"):
            combine(shares, 2)
    shares = dict(enumerate(split(bytes(32), 3, 2), 1))
    for value in (PRIME, 2**264 - 1):  # no residue
        with pytest.raises(MessageRefused, match="do not belong together"):
            combine(shares | {1: value.to_bytes(33, "little")}, 2)
    for arguments in ((bytes(31), 3, 2), (bytes(32), 3, 4), (bytes(32), 3, 0)):
        with pytest.raises(ValueError, match="32 bytes"):
            split(*arguments)

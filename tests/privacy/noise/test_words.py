"""Words: fork-safe by default, keyed by public values when seeded, never numpy's global state."""

import os
import pickle
import ssl
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdp.privacy.noise.integers import integer_gaussian
from skdp.privacy.noise.words import SeededSource, SystemSource, _encode, make_source
from tools.outcomes import refuses

pytestmark = pytest.mark.system_entropy
N = 100_000


def noise(source, *key, n=N):
    return integer_gaussian(source.words(*key), (n,)).astype(float)


def test_system_words_are_uint64_and_fresh(monkeypatch):
    """A copy of the whole machine has a copy of the generator: each release adds to it."""
    mixed = []
    monkeypatch.setattr(ssl, "RAND_add", lambda more, entropy: mixed.append(more))
    _, words = (SystemSource().words("gram", 1.0) for _ in range(2))
    assert [len(more) for more in mixed] == [32, 32] and mixed[0] != mixed[1]
    first, second = words(1000), words(1000)
    assert first.dtype == np.uint64 and first.shape == (1000,)
    assert words(0).shape == (0,)
    assert not np.intersect1d(first, second).size
    assert np.unique(words(N)).size == N  # of many blocks
    bits = np.unpackbits(words(N).view(np.uint8)).sum(dtype=np.int64)
    assert abs(bits - 32 * N) < 6 * np.sqrt(16 * N)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_child_and_parent_draw_different_words_after_a_fork():
    words = make_source(None).words("gram")
    words(10)  # a generator with a buffer would now hold words that both processes use
    reader, writer = os.pipe()
    # the BLAS has threads
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()
    if child == 0:
        os.write(writer, words(8).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 64), dtype=np.uint64)
    os.close(reader), os.close(writer)
    assert theirs.size == 8
    assert not np.intersect1d(theirs, words(8)).size


@pytest.mark.parametrize("state", [0, 7, np.int64(7), np.uint8(3), 2**100])
def test_integers_seed(state):
    source = make_source(state, "DPPCA", 0)
    assert source.seeded
    again = make_source(int(state), "DPPCA", 0)
    assert np.array_equal(source.words("gram", 2.0)(9), again.words("gram", 2.0)(9))


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_generators_seed_and_are_advanced_once_per_call(make):
    state, twin = make(5), make(5)
    first, second = make_source(state), make_source(state)
    assert first.seeded
    assert np.array_equal(make_source(twin).words()(4), first.words()(4))
    assert np.array_equal(make_source(twin).words()(4), second.words()(4))
    assert not np.intersect1d(first.words()(4), second.words()(4)).size
    reference = make(5)
    reference.bytes(16), reference.bytes(16)
    assert state.bytes(8) == reference.bytes(8)  # 128 bits a call, nothing later


@pytest.mark.parametrize(
    "state", [True, np.True_, -1, 1.0, "0", b"ab", np.random, [1], np.random.mtrand._rand, object()]
)
def test_everything_else_is_refused(state):
    refuses(ValueError, "cannot be used to seed", make_source, state)


@pytest.mark.parametrize("seed", [True, -1, 1.5, "0", None])
def test_seeds_of_a_source_are_checked(seed):
    refuses(ValueError, "seed must be", SeededSource, seed)


def test_a_seed_repeats_and_every_part_of_the_key_counts():
    def draw(seed=1, context=("DPPCA", 0), key=("gram", 2.0, 0)):
        return noise(SeededSource(seed, *context), *key)

    base = draw()
    assert np.array_equal(base, draw())
    others = [
        draw(seed=2),
        draw(context=("DPTruncatedSVD", 0)),
        draw(context=("DPPCA", 1)),
        draw(key=("gram", 4.0, 0)),  # another epsilon
        draw(key=("gram", np.nextafter(2.0, 3.0), 0)),
        draw(key=("mean", 2.0, 0)),
        draw(key=("gram", 2.0, 1)),
        noise(SeededSource(1, "DPPCA", 0).derive("sketch"), "gram", 2.0, 0),
    ]
    assert all(abs(np.corrcoef(base, other)[0, 1]) < 6 / np.sqrt(N) for other in others)


def test_a_stream_does_not_depend_on_how_it_is_read():
    whole = SeededSource(3).words("gram")(20_000)
    words = SeededSource(3).words("gram")
    parts = [words(n) for n in (0, 1, 4095, 4096, 1, 9000, 2807)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(SeededSource(3).words("gram")(5), whole[:5])
    assert not np.intersect1d(whole[:4096], whole[4096:]).size


def test_seeded_words_are_the_documented_hash():
    # A change here changes every seeded result: announce it.
    assert SeededSource(0, "a").words("b", 1.0)(2).tolist() == FIRST_WORDS


FIRST_WORDS = [739248342893735916, 595077292140913539]


def test_children_are_a_tree():
    source = SeededSource(0)
    draws = [
        source.words("a")(4),
        source.derive("a").words()(4),
        source.derive("a").words("a")(4),
        source.derive("a", "b").words()(4),
        source.derive("a").derive("b").words()(4),
        SeededSource(0, "a").words()(4),
    ]
    assert np.unique(np.concatenate(draws)).size == 24
    assert source.derive("a").seeded
    assert not SystemSource().derive("a").seeded


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that has threads
def test_forked_children_have_words_of_their_own():
    """A fork copies the generator's state, of a source that was made before too."""
    words, drawn = SystemSource().words(), []
    words(3)
    for _ in range(2):
        end, start = os.pipe()
        if (child := os.fork()) == 0:
            os.write(start, words(3).tobytes())
            os._exit(0)
        os.waitpid(child, 0)
        drawn.append(np.frombuffer(os.read(end, 24), np.uint64))
        os.close(end), os.close(start)
    assert np.unique(np.concatenate([*drawn, words(3)])).size == 9


@pytest.mark.parametrize("seeded", [True, False])
def test_a_secret_gives_the_same_words(seeded):
    source, other = (SeededSource.from_secret(os.urandom(32).hex(), seeded=seeded) for _ in "ab")
    again = SeededSource.from_secret(source.secret(), seeded=seeded)
    assert again.seeded is again.derive("a").seeded is seeded
    assert np.array_equal(again.words("x", 3)(9), source.words("x", 3)(9))
    assert not np.intersect1d(source.words("x", 3)(9), other.words("x", 3)(9)).size
    assert source.secret() not in repr(again)


def test_repr_shows_no_key_and_pickling_keeps_the_stream():
    source = SeededSource(123456789, "DPPCA")
    assert "123456789" not in repr(source) and source.secret() not in repr(source)
    assert np.array_equal(pickle.loads(pickle.dumps(source)).words(1)(3), source.words(1)(3))


parts = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def tagged(part):
    """Equal exactly for keys that must be equal: 1, 1.0 and True differ, -0.0 and 0.0 too."""
    if isinstance(part, tuple):
        return tuple(map(tagged, part))
    return type(part).__name__, part.hex() if isinstance(part, float) else part


@pytest.mark.thorough
@given(parts, parts)
def test_key_encoding_is_unambiguous(one, two):
    assert (_encode(one) == _encode(two)) == (tagged(one) == tagged(two))


def test_numpy_scalars_encode_as_their_python_values():
    assert _encode(np.float64(0.1)) == _encode(0.1)
    assert _encode(np.int32(4)) == _encode(4) != _encode(4.0)
    assert _encode(np.True_) == _encode(True) != _encode(1)
    assert _encode(("ab", "c")) != _encode(("a", "bc"))


@pytest.mark.parametrize("part", [None, [1], np.arange(3), {"a": 1}])
def test_keys_hold_public_scalars_only(part):
    refuses(TypeError, "A key is made of", SeededSource(0).words, "gram", part)

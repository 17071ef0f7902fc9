"""Random 64-bit words: from the operating system by default, from a seeded stream on request.

A *source* hands out *words*: a callable whose ``words(n)`` is an array of ``n`` uniform 64-bit
integers. The samplers of :mod:`skdp.privacy.noise.integers` consume words and know no generator.

numpy's generators are never a source of noise: they are not cryptographic, and their state lives
in the process, so a forked worker would repeat its parent's noise. numpy's global state is never
read at all.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from typing import Final, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

WordArray: TypeAlias = NDArray[np.uint64]
KeyPart: TypeAlias = (
    "str | bytes | bool | int | float | np.bool_ | np.integer | np.floating | tuple[KeyPart, ...]"
)

_BLOCK_WORDS: Final = 4096
KEY_BYTES: Final = 32
_DOMAIN: Final = b"skdp.privacy.random/1"


class Words(Protocol):
    """A callable that returns the next ``n`` independent uniform 64-bit words, to one thread."""

    def __call__(self, n: int, /) -> WordArray:
        """Return ``n`` words, dtype uint64."""


class SystemSource:
    """Words from OpenSSL's generator (``ssl.RAND_bytes``), which the operating system seeds.

    It is AES-256 in counter mode (NIST SP 800-90A), 15 times as fast as ``os.urandom``. Nothing
    else is buffered in the process: a buffer would be copied by ``fork``, and two joblib workers
    would then add the same noise, which a difference of their outputs cancels. OpenSSL seeds a
    forked child anew. Each release mixes in bytes of ``os.urandom``: a copy of a whole machine has
    a copy of the generator, too.
    """

    __slots__ = ()
    seeded = False

    def words(self, *public_key: KeyPart) -> Words:
        """Return fresh words; the key is not used."""
        ssl.RAND_add(os.urandom(KEY_BYTES), 0.0)
        return _system_words

    def derive(self, *label: KeyPart) -> SystemSource:
        """Return this source: its words are independent at every call."""
        return self


class SeededSource:
    """Words from a keyed SHAKE-256 stream: reproducible, so a test tool and not private.

    Parameters
    ----------
    seed : int or bytes
        A nonnegative integer, or raw bytes. They never give the same key.
    *context : str, bytes, bool, int, float or tuple of these
        Public values that tell fits apart: class name, ledger index. With the public key of
        :meth:`words` (release name, noise scale, serial) they make one seed at two budgets give
        unrelated noise; if the noise were equal up to its scale, two releases would reveal the
        exact answer. Shapes and ``n_jobs`` have no place here.

    Notes
    -----
    Keys form a tree: source key = H(seed, context), child = H(key, label), stream =
    H(key, public key). Block i of a stream is SHAKE-256(stream key, i): a stream does not depend
    on how its words are asked for. Every part is tagged by type and prefixed by its length.
    """

    __slots__ = ("_key", "seeded")

    def __init__(self, seed: int | np.integer | bytes, *context: KeyPart) -> None:
        if not isinstance(seed, bytes) and not _is_seed(seed):
            raise ValueError(f"seed must be a nonnegative int or bytes. Got {seed!r}.")
        self._key = _hash(b"seed", seed, context)
        self.seeded = True

    @classmethod
    def from_secret(cls, key: str, *, seeded: bool) -> SeededSource:
        """Return the source of a `secret`, `seeded` as it was."""
        source = object.__new__(cls)
        source._key, source.seeded = bytes.fromhex(key), seeded
        return source

    def secret(self) -> str:
        """Return the key as text, for a checkpoint: as secret as the data."""
        return self._key.hex()

    def words(self, *public_key: KeyPart) -> Words:
        """Return the words named by ``public_key``, from the beginning of their stream."""
        return _KeyedWords(_hash(b"words", self._key, public_key))

    def derive(self, *label: KeyPart) -> SeededSource:
        """Return the child source named by ``label``; no stream is shared with this one."""
        key = _hash(b"child", self._key, label)
        return self.from_secret(key.hex(), seeded=self.seeded)


NoiseSource: TypeAlias = SystemSource | SeededSource


def make_source(random_state: object, *context: KeyPart) -> NoiseSource:
    """Return the source that a ``random_state`` asks for.

    Parameters
    ----------
    random_state : None, int, numpy.random.Generator or numpy.random.RandomState
        None reads the operating system. The others give a :class:`SeededSource`; a Generator or
        RandomState is advanced by 128 bits now, so call this in ``fit``, once.
    *context : str, bytes, bool, int, float or tuple of these
        See :class:`SeededSource`.
    """
    if random_state is None:
        _encode(context)
        return SystemSource()
    if _is_seed(random_state):
        return SeededSource(int(random_state), *context)
    if (
        isinstance(random_state, np.random.Generator | np.random.RandomState)
        and random_state is not np.random.mtrand._rand
    ):
        return SeededSource(random_state.bytes(16), *context)
    raise ValueError(
        f"{random_state!r} cannot be used to seed the noise; use None (private noise from the "
        "operating system), a nonnegative int, a numpy.random.Generator or a "
        "numpy.random.RandomState instance other than numpy's global one."
    )


class _KeyedWords:
    """Counter mode: block i is SHAKE-256(key, i), made no further than it is asked for."""

    __slots__ = ("_block", "_key", "_left", "_made")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._block, self._made = 0, 0
        self._left: WordArray = np.empty(0, dtype=np.uint64)

    def __call__(self, n: int, /) -> WordArray:
        parts, missing = [self._left], n - self._left.size
        while missing > 0:
            parts.append(self._further(missing))
            missing -= parts[-1].size
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._left = joined[n:].copy()
        return joined[:n]

    def _further(self, n: int) -> WordArray:
        """Return the next words of a block: at least n of them, or all that are left of it.

        Shorter digests are prefixes of longer ones. As most releases need one number, the first
        digest is short.
        """
        if self._made == _BLOCK_WORDS:
            self._block, self._made = self._block + 1, 0
        size = min(_BLOCK_WORDS, 4 * (self._made + n))
        counter = self._block.to_bytes(8, "little")
        digest = hashlib.shake_256(self._key + counter).digest(8 * size)
        made, self._made = self._made, size
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64, copy=False)[made:]


def _system_words(n: int, /) -> WordArray:
    sizes = (min(_BLOCK_WORDS, n - i) for i in range(0, n, _BLOCK_WORDS))  # OpenSSL takes a C int
    return np.frombuffer(b"".join(ssl.RAND_bytes(8 * size) for size in sizes), dtype=np.uint64)


def _hash(purpose: bytes, *parts: KeyPart) -> bytes:
    return hashlib.shake_256(_encode((_DOMAIN, purpose, *parts))).digest(KEY_BYTES)


def _encode(part: KeyPart) -> bytes:
    """Encode without ambiguity: type tag, length of the body in 8 bytes, body."""
    if isinstance(part, tuple):
        return _frame(b"t", b"".join(_encode(item) for item in part))
    if isinstance(part, bool | np.bool_):
        return _frame(b"b", b"\x01" if part else b"\x00")
    if isinstance(part, int | np.integer):
        return _frame(b"i", str(int(part)).encode())
    if isinstance(part, float | np.floating):
        return _frame(b"f", float(part).hex().encode())
    if isinstance(part, str):
        return _frame(b"s", part.encode())
    if isinstance(part, bytes):
        return _frame(b"y", part)
    raise TypeError(f"A key is made of str, bytes, bool, int, float and tuples. Got {part!r}.")


def _frame(tag: bytes, body: bytes) -> bytes:
    return tag + len(body).to_bytes(8, "little") + body


def _is_seed(seed: object) -> TypeGuard[int | np.integer]:
    return isinstance(seed, int | np.integer) and not isinstance(seed, bool) and int(seed) >= 0

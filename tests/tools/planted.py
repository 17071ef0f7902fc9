"""Planted slips of `tests/planted.toml`: {what: (file, is, slip)}; `select_tier.py` plants them.

The first tier must catch each. `test_mutations.py` asks the same of single checks.
"""

import importlib
import inspect
import tomllib
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType
from unittest import mock

_TABLE = Path(__file__).parents[1] / "planted.toml"
PLANTED = {what: tuple(slip.values()) for what, slip in tomllib.loads(_TABLE.read_text()).items()}


@contextmanager
def planted(bug):
    """Plant a bug in this process: the functions of its module get the code of the slip."""
    file, right, slip = PLANTED[bug]
    module = importlib.import_module(f"skdp.{file.removesuffix('.py').replace('/', '.')}")
    text = Path(module.__file__).read_text()
    assert text.count(right) == 1, bug
    was = dict(_codes(text, module.__file__))
    now = dict(_codes(text.replace(right, slip), module.__file__))
    changed = [(*_function(module, name), code) for name, code in now.items() if code != was[name]]
    before = [function.__code__ for *_, function, _ in changed]
    with ExitStack() as stack:
        try:
            for owner, name, function, code in changed:
                if function.__code__.co_filename == module.__file__:
                    function.__code__ = code
                else:  # the test put another one in its place
                    own = FunctionType(code, vars(module), name)
                    stack.enter_context(mock.patch.object(owner, name, own))
            yield
        finally:
            for (*_, function, _), code in zip(changed, before, strict=True):
                function.__code__ = code


def _codes(text, file):
    """Yield (qualified name, code) of the functions and methods of a source."""
    places = [compile(text, file, "exec", dont_inherit=True)]
    for place in places:
        for code in filter(inspect.iscode, place.co_consts):
            if code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED:
                yield code.co_qualname, code
            else:  # the body of a class
                places.append(code)


def _function(module, name):
    owner, _, last = name.rpartition(".")
    for part in filter(None, owner.split(".")):
        module = getattr(module, part)
    found = vars(module)[last]
    own = (getattr(found, name, None) for name in ("fget", "func", "__func__"))  # of a property ...
    function = inspect.unwrap(next(filter(None, own), found))
    return module, last, function

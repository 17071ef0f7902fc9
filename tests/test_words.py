"""Names and pages use the words of the field: no word of this list may come back."""

import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path

import pytest

from tools.ways import FACES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "skdp"
# Word of the house -> what a reader of the field expects.
WORDS = {
    "beside": "with, next to", "coins": "random bits", "glasses": "projection",
    "narrowed": "restricted", "octave": "log2 bin", "octaves": "log2 bins",
    "readable": "above the noise", "rung": "stage", "rungs": "stages", "taste": "latent factor",
    "tastes": "latent factors", "told": "adjusted",
}  # fmt: skip
# And of names inside the package, where these words have a meaning that no reader would guess.
INSIDE = {
    "blurred": "unresolved", "bought": "staged", "corner": "bias column", "corners": "biases",
    "doubt": "margin, concern", "doubts": "margins, concerns", "looks": "passes",
    "push": "noise bias", "pushed": "biased", "pushes": "noise biases", "reach": "radius",
    "readout": "regression", "readouts": "regressions", "sight": "scaling", "tells": "informs",
    "unclear": "undetected",
}  # fmt: skip
OLD_NAMES = (
    "privacy_card", "ledger_", "pay_for", "refusals", "holds_private", "n_acknowledged",
    "records_needed", "PrintedPowerMethod", "leave_some_out", "histories_of_pairs", "LocalReporter",
    "PlainAggregator", "MessageRefused", "falling_spectrum", "vote_error", "scale_doubt",
    "user_column", "require_users", "fit_means", "coef_bound", "expected_runs", "score_share",
    "entry_bounds_", "whitener_", "clip_levels_", "noise_sd_", "left_out", "norm_median",
    "column_ranks", "head_choice_", "route_", "left_", "U_", "V_", "targets_seen_", "entry_scale_",
    "coef_bound_", "plan_",
)  # fmt: skip
PAGES = [
    path
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py"))
    if "_build" not in path.parts and path.name != "benchmarks.md"  # whose tables have old rows
]


def public_names(module):
    """Names that a user types: of objects, their parameters, methods and fitted attributes."""
    for name in importlib.import_module(module).__all__:
        found = getattr(importlib.import_module(module), name)
        yield name
        if inspect.isclass(found) and issubclass(found, BaseException):
            continue
        if callable(found):
            yield from inspect.signature(found).parameters
        if inspect.isclass(found):
            yield from (each for each in dir(found) if not each.startswith("_"))
            yield from re.findall(r"^ {4}(\w+_) : ", found.__doc__ or "", re.MULTILINE)


@pytest.mark.parametrize("module", ["skdp", *FACES])
def test_names_are_those_of_the_field(module):
    names = set(public_names(module))
    assert names.isdisjoint(OLD_NAMES)
    parts = parts_of(names)
    assert {word: parts[word] for word in WORDS.keys() & parts.keys()} == {}


def parts_of(names):
    return {part.lower(): name for name in names for part in re.findall(r"[A-Z]?[a-z0-9]+", name)}


def identifiers(path):
    """Yield the names of a file, if some word in it is one that no name may have."""
    text = path.read_text(encoding="ascii")  # what a console of any encoding can print
    if parts_of(re.findall(r"\w+", text)).keys() & (WORDS | INSIDE).keys():
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.string


def test_names_inside_are_those_of_the_field():
    names = {name: path.name for path in PACKAGE.rglob("*.py") for name in identifiers(path)}
    parts = parts_of(names)
    wrong = (WORDS | INSIDE).keys() & parts.keys()
    assert {word: (parts[word], names[parts[word]]) for word in wrong} == {}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_words_of_the_field(path):
    words = set(re.findall(r"[A-Za-z]\w*", path.read_text(encoding="utf-8")))
    assert words.isdisjoint(OLD_NAMES)
    assert {word: WORDS[word] for word in WORDS.keys() & {each.lower() for each in words}} == {}

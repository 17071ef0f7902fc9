"""Sphinx configuration. One command builds the site; see CONTRIBUTING.md."""

import re
from pathlib import Path

import skdp

ROOT = Path(__file__).resolve().parent.parent

project = "skdp"
author = "the skdp developers"
copyright = "2026, the skdp developers"
version = release = skdp.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_templates", "auto_examples/*.ipynb", "auto_examples/*.md5"]
templates_path = ["_templates"]
highlight_language = "none"  # boxes and drawings without a language are text

autosummary_generate = True
autodoc_default_options = {"members": False}
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "skdp"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_sidebars = {"auto_examples/index": []}  # the pictures need the room
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
}

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "thumbnail_size": (640, 448),
    "min_reported_time": 10,
    "copyfile_regex": r".*\.(txt|csv)",
}

_PICTURE = re.compile(r"^\.\. image-sg:: .*?\n\n", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"\((?:\.\./)+examples/(plot_\w+)\.py\)")
_TABLES = re.compile(r"\]\((?:\.\./)+benchmarks/tables\.md(#\w+)?\)")
_TOP_PAGE = re.compile(r"\((?:\.\./)*(SECURITY|CONTRIBUTING|CHANGELOG)\.md\)")
_ROLE = re.compile(r":(?:ref|term|class|func|meth|doc):`~?([^`<]+?)(?:\s*<[^`>]+>)?`")


def to_site(page, source):
    """Make links that work in the repository work on the site."""
    up = "../" * page.count("/")
    source[0] = _EXAMPLE.sub(lambda found: f"({up}auto_examples/{found[1]}.rst)", source[0])
    source[0] = _TABLES.sub(
        r"](https://github.com/skdp/skdp/blob/main/benchmarks/tables.md\1)", source[0]
    )
    source[0] = _TOP_PAGE.sub(lambda found: f"({up}{found[1].lower()}.md)", source[0])


def picture_first(page, source):
    """Show the picture of an example right below its introduction, above the code."""
    if page.startswith("auto_examples/plot_") and (picture := _PICTURE.search(source[0])):
        text = source[0].replace(picture[0], "", 1)
        head, mark, tail = text.partition(".. GENERATED FROM")
        intro, mark2, rest = tail.partition(".. GENERATED FROM")
        source[0] = f"{head}{mark}{intro}{picture[0]}{mark2}{rest}"


def drop_foreign_roles(app, what, name, obj, options, lines):
    """Methods inherited from scikit-learn refer to pages of its own documentation."""
    if (getattr(obj, "__module__", "") or "").startswith("sklearn."):
        lines[:] = [_ROLE.sub(r"\1", line) for line in lines]


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", lambda app, page, source: to_site(page, source))
    app.connect("source-read", lambda app, page, source: picture_first(page, source))
    app.connect("include-read", lambda app, path, page, source: to_site(page, source))
    app.connect("autodoc-process-docstring", drop_foreign_roles)

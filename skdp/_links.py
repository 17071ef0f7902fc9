"""Where the HTML of an estimator leads to: its page in our documentation."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["DocLinkMixin"]


def _docs_version() -> str:
    """Return which documentation is of this code: that of releases, or of the source tree."""
    try:
        unreleased = "dev" in version("skdp")
    except PackageNotFoundError:  # run from the source tree
        unreleased = True
    return "latest" if unreleased else "stable"


class DocLinkMixin:
    """Link the name in scikit-learn's HTML display to the page of the class."""

    _doc_link_module = "skdp"
    _doc_link_template = (
        f"https://skdp.readthedocs.io/en/{_docs_version()}/api/"
        "{estimator_module}.{estimator_name}.html"
    )

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        module = type(self).__module__.partition("._")[0]
        return {"estimator_module": module, "estimator_name": type(self).__name__}

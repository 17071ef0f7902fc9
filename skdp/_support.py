"""For reports: versions of what is installed."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import threadpoolctl

# What a bug report needs to know.
_NEEDED = ("skdp", "numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl")
_OPTIONAL = ("matplotlib", "pandas", "dask", "distributed", "cryptography", "dp-accounting")


def show_versions() -> None:
    """Print the versions of Python, of skdp and of what it uses, for a bug report.

    Nothing of any data or path is printed.

    Examples
    --------
    >>> import skdp
    >>> skdp.show_versions()
    python         ...
    platform       ...
    skdp           ...
    """
    lines = [("python", sys.version.split()[0]), ("platform", platform.platform())]
    lines += [(name, _version(name)) for name in (*_NEEDED, *_OPTIONAL)]
    for pool in threadpoolctl.threadpool_info():
        kernel = pool.get("architecture") or ""
        words = (pool["internal_api"], pool.get("version") or "", kernel)
        lines.append((pool["user_api"], f"{' '.join(filter(None, words))}, {pool['num_threads']}"))
    for name, value in lines:
        print(f"{name:14} {value}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "run from its source tree" if name == "skdp" else "not installed"

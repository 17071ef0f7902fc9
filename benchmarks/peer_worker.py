"""Runs inside the environment of a peer: fits its PCA and scikit-learn's in turn.

``python peer_worker.py PEER FILE K EPSILON...``: FILE holds X (rows of norm at most 1, taken as
centred). Prints one line of JSON for the versions, and one for each fit.
"""

import importlib.metadata
import json
import sys
import time
import warnings

import numpy as np


def diffprivlib_pca(X, k, epsilon):
    """Pure epsilon, one replaced row; the data are taken as centred."""
    from diffprivlib.models import PCA

    return PCA(k, epsilon=epsilon, data_norm=1.0, centered=True).fit(X).components_


def opendp_pca(X, k, epsilon):
    """Pure epsilon. Its own map charges 2 epsilon for one replaced row, so half is given."""
    import opendp.prelude as dp
    from opendp.extras.sklearn.decomposition import PCA

    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    n, d = X.shape
    model = PCA(epsilon=epsilon / 2, row_norm=1.0, n_samples=n, n_features=d, n_components=k)
    return model.fit(X).components_


PEERS = {"diffprivlib": diffprivlib_pca, "opendp": opendp_pca}


def imported(peer):
    """Import what the fit needs, so that the import is not timed."""
    if peer == "diffprivlib":
        import diffprivlib.models  # noqa: F401
    else:
        import randomgen  # noqa: F401


def say(**line):
    print(json.dumps(line), flush=True)


def timed(function, *args):
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def plain(X, k):
    from sklearn.decomposition import PCA

    return PCA(k, svd_solver="covariance_eigh").fit(X).components_


def main(peer, path, k, epsilons):
    warnings.simplefilter("ignore")
    names = ("numpy", "scikit-learn", peer)
    versions = {name: importlib.metadata.version(name) for name in names}
    try:
        imported(peer)
    except Exception as error:
        say(versions=versions, error=f"{type(error).__name__}: {error}".split(" (/")[0])
        return
    say(versions=versions)
    X = np.load(path)
    plain(X, k)
    for epsilon in epsilons:
        say(epsilon=epsilon)
        try:
            seconds, components = timed(PEERS[peer], X, k, epsilon)
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}".strip().splitlines()[0][:200])
            continue
        beside, _ = timed(plain, X, k)
        say(seconds=seconds, beside=beside, components=np.asarray(components).tolist())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [float(x) for x in sys.argv[4:]])

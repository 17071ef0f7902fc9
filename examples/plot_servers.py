"""
What do servers of one company lose when none of them trusts the others?
========================================================================

Each of p servers sees a part of the traffic between 300 sources and 200 destinations. Each keeps a
noisy sketch of its part, and a coordinator adds the sketches: it never sees more than that. With
independent noise the error grows with the root of p; under a secure sum, where each server adds a
part of the noise, it does not grow.
"""

# %%
# All servers share one public seed of the sketch, and the caller declares that the traffic does not
# depend on it. The unit is a change of the whole matrix of norm 50, however it is spread.
import importlib.util

import numpy as np

from skdp import DPLowRankFactorizer

rng = np.random.default_rng(0)
shape, rank = (300, 200), 4
traffic = rng.gamma(2.0, 120.0, (300, rank)) @ rng.dirichlet(np.full(200, 0.3), rank)
traffic *= 1e5 / np.linalg.norm(traffic)


def factorizer(**more):
    """A factorizer on one server, or that of the coordinator."""
    model = DPLowRankFactorizer(
        rank, unit_bound=50.0, matrix_shape=shape, method="two_sketch", sketch_size=(60, 120),
        sensitivity_mode="oblivious",
    )  # fmt: skip
    return model.for_server(sketch_seed=20, **more)


def secure_sum(arrays):
    """Stand-in for a real protocol: the sum modulo 2**64 and nothing else."""
    return np.sum(arrays, axis=0, dtype=np.int64)


def relative_error(model):
    return np.linalg.norm(traffic - model.reconstruct()) / np.linalg.norm(traffic)


# %%
numbers, independent, shared = [1, 2, 4, 8, 16], [], []
for p in numbers:
    weights = rng.dirichlet(np.ones(p), shape)
    parts = [traffic * weights[:, :, i] for i in range(p)]
    coordinator = factorizer()
    for part in parts:
        message = factorizer().update_matrix(part).state_message()  # bytes, safe to send
        coordinator.merge(message)
    independent.append(relative_error(coordinator.release()))
    servers = [factorizer(n_honest_servers=p).update_matrix(part) for part in parts]
    total = factorizer().merge_secure(servers, secure_sum)
    shared.append(relative_error(total.release()))

print(f"a message has {len(message) / 1e3:.0f} kB; the matrix has {8 * traffic.size / 1e3:.0f} kB")
for p, one, two in zip(numbers, independent, shared, strict=True):
    print(f"{p:>3} servers: independent noise {one:.3f}   secure sum {two:.3f}")

# %%
if importlib.util.find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    panel.semilogx(numbers, independent, "o-", label="independent noise")
    panel.semilogx(numbers, shared, "s--", label="parts of the noise, secure sum")
    panel.set_xticks(numbers, [str(number) for number in numbers])
    panel.minorticks_off()
    panel.set_ylim(0, None)
    panel.set(xlabel="servers (number)", ylabel="error relative to the matrix")
    panel.set_title("traffic of 300 sources and 200 destinations, rank 4")
    panel.legend()
    figure.savefig("servers.png", dpi=150)
    print("\nwrote servers.png")
else:
    print("\nwith matplotlib installed this also draws a picture")

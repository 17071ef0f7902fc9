"""Make the README's picture from the results: ``python benchmarks/picture.py``.

Reads ``benchmarks/results.json``, which ``python -m benchmarks peers`` writes, and draws captured
share against epsilon, ours and the peers', into ``docs/images/utility.png``.
"""

import json
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PANELS = {
    "digits, n=1797 d=64 k=5": "digits: 1797 rows, 64 features, 5 components",
    "spiked rows, n=5000 d=6 k=2": "synthetic: 5000 rows, 6 features, 2 components",
}
CURVES = {
    "DPPCA, add_remove": "skdp.DPPCA, a row added or removed",
    "DPPCA, replace": "skdp.DPPCA, a row replaced",
    "diffprivlib.models.PCA": "diffprivlib PCA (pure), a row replaced",
    "opendp.extras.sklearn PCA": "OpenDP PCA (pure), a row replaced",
}
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def curve(fits):
    """Return (epsilons, captured shares) where there are any, as many at each epsilon."""
    fits = {float(epsilon): [fit[0] for fit in several] for epsilon, several in fits.items()}
    least = min(map(len, fits.values()), default=0)
    epsilons = sorted(fits)
    return epsilons, [fits[epsilon][:least] for epsilon in epsilons]


def panel(ax, title, table):
    """Draw all curves of one table."""
    facts = table["data"]
    for (name, label), color, marker in zip(CURVES.items(), COLORS, "os^D", strict=True):
        epsilons, values = curve(facts["curves"].get(name, {}))
        if epsilons:
            ax.plot(epsilons, np.median(values, axis=1), marker=marker, color=color, label=label)
            low, high = np.percentile(values, [5, 95], axis=1)
            band = "5% to 95% of the fits" if name == next(iter(CURVES)) else None
            ax.fill_between(epsilons, low, high, color=color, alpha=0.2, linewidth=0, label=band)
    ax.axhline(facts["best"], linestyle="--", color="0.35", label="not private")
    ax.axhline(facts["chance"], linestyle=":", color="0.35", label="chance")
    ax.set_xscale("log")
    ax.set_xticks([], minor=True)
    ax.set_ylabel("captured share of the squared norm")
    epsilons = facts["epsilons"]
    ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    ax.set_xlim(epsilons[0] / 1.2, epsilons[-1] * 1.2)
    ax.set_title(title, fontsize="medium")
    ax.set_xlabel("epsilon (log scale; skdp: delta = 1e-6)")


def main():
    import matplotlib.pyplot as plt

    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    tables = {table["title"]: table for table in results["peers"]["tables"]}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for ax, (title, name) in zip(axes, PANELS.items(), strict=True):
        panel(ax, name, tables[title])
        ax.set_ylim(0, 1.08 * tables[title]["data"]["best"])
    axes[1].set_ylabel("")
    axes[0].text(
        0.97, 0.36, "peers end where a fit\ntakes longer than the limit",
        transform=axes[0].transAxes, ha="right", fontsize="small", color="0.35",
    )  # fmt: skip
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    target = ROOT / "docs" / "images" / "utility.png"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=110)
    print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

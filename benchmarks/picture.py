"""Make the README's picture from the results: ``python benchmarks/picture.py``.

Reads ``benchmarks/results.json``, which ``python -m benchmarks peers`` writes, and draws captured
share against epsilon, ours and the peers', into ``docs/images/utility.png``.
"""

import json
from pathlib import Path

from skdp.plotting import UtilityCurveDisplay

ROOT = Path(__file__).resolve().parents[1]
PANELS = {
    "digits, n=1797 d=64 k=5": ("public", "digits: 1797 rows, 64 features, 5 components"),
    "spiked rows, n=5000 d=6 k=2": ("synthetic", "synthetic: 5000 rows, 6 features, 2 components"),
}
CURVES = {
    "DPPCA, add_remove": "skdp.DPPCA, a row added or removed",
    "DPPCA, replace": "skdp.DPPCA, a row replaced",
    "diffprivlib.models.PCA": "diffprivlib PCA (pure), a row replaced",
    "opendp.extras.sklearn PCA": "OpenDP PCA (pure), a row replaced",
}


def curve(fits):
    """Return (epsilons, captured shares) where there are any, as many at each epsilon."""
    fits = {float(epsilon): [fit[0] for fit in several] for epsilon, several in fits.items()}
    least = min(map(len, fits.values()), default=0)
    epsilons = sorted(fits)
    return epsilons, [fits[epsilon][:least] for epsilon in epsilons]


def panel(ax, data, title, table):
    """Draw all curves of one table."""
    facts = table["data"]
    display = None
    for name, label in CURVES.items():
        epsilons, values = curve(facts["curves"].get(name, {}))
        if epsilons:
            first = name == next(iter(CURVES))
            display = UtilityCurveDisplay.from_values(
                epsilons, values, data=data, label=label, ax=ax,
                metric_name="captured share of the squared length",
                not_private=facts["best"] if first else None,
                chance=facts["chance"] if first else None,
            )  # fmt: skip
    epsilons = facts["epsilons"]
    ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    ax.set_xlim(epsilons[0] / 1.2, epsilons[-1] * 1.2)
    ax.set_title(title, fontsize="medium")
    ax.set_xlabel("epsilon (log scale; skdp: delta = 1e-6)")
    ax.get_legend().remove()
    return display


def main():
    import matplotlib.pyplot as plt

    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    tables = {table["title"]: table for table in results["peers"]["tables"]}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for ax, (title, (data, name)) in zip(axes, PANELS.items(), strict=True):
        panel(ax, data, name, tables[title])
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

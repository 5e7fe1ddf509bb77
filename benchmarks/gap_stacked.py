"""Measure GAP on stacked MNIST: modes of 1,000 and KL of one GAN, four separate and four that swap. Writes JSON and PNG.

python benchmarks/gap_stacked.py --set engine.device=cuda
python benchmarks/gap_stacked.py --only gap …                       one arm now, the other in another call
python benchmarks/gap_stacked.py --budget 20steps -n 500 --set nets.generator.width=8 --set nets.discriminator.width=8   a try

Each number is from 26,000 samples. One GAN is the first of the four separate ones, which trains as it would alone, so it is
not trained twice. The best member is chosen with other samples than it is measured with. Published numbers are from the tables
of VEEGAN and PacGAN.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from existing_runs import run_main
from ganherd.metrics.stacked_modes import SAMPLES
from ganherd.util.text import text_table
from ganherd.viz import pictures
from gap_study import Arm, Row, each, opened, parser, write

HERE = Path(__file__).parent / "results"
ARMS = {
    "apart": Arm("four apart", "stacked-mnist-gan", ("herd.members=4",)),
    "gap": Arm("GAP ×4", "stacked-mnist-gap4"),
}
PUBLISHED = {  # modes and KL
    "DCGAN (VEEGAN T2)": ("99", "3.40"),
    "ALI (VEEGAN T2)": ("16", "5.40"),
    "Unrolled (VEEGAN T2)": ("48.7", "4.32"),
    "VEEGAN (VEEGAN T2)": ("150", "2.95"),
    "DCGAN (PacGAN T2)": ("78.9 ± 6.46", "4.50 ± 0.127"),
    "PacDCGAN2 (PacGAN T2)": ("1000 ± 0", "0.06"),
    "PacDCGAN3 (PacGAN T2)": ("1000 ± 0", "0.06"),
    "PacDCGAN4 (PacGAN T2)": ("1000 ± 0", "0.07"),
}


def measured(run: str, samples: int) -> Row:
    """Return modes and KL of each member, of their mean, of the best, and of the mixture."""
    import ganherd
    from ganherd.data.dataset import load
    from ganherd.features.extract import best_device
    from ganherd.features.material import ScoringContext
    from ganherd.metrics import stacked_modes
    from ganherd.runs.folder import RunFolder

    mixture, data = ganherd.load(run).to(best_device()), load(RunFolder.open(run).recipe.data)
    scores, other = (
        stacked_modes.measure(ScoringContext(mixture, data, samples, s, per="member"), samples) for s in (0, 1)
    )
    modes, kl = list(scores["per_member"].values()), list(scores["per_member_kl"].values())
    best = other["best_member"]
    return {
        "samples": scores["samples"],
        "network": scores["network"],
        "held_out_accuracy": scores["held_out_accuracy"],
        "by_chance": scores["by_chance"],
        "members": [{"modes": m, "kl": k} for m, k in zip(modes, kl, strict=True)],
        "mean": {"modes": scores["mean_member"], "kl": scores["mean_member_kl"]},
        "best": {"modes": modes[best], "kl": kl[best], "member": best},
        "mixture": {"modes": scores["value"], "kl": scores["kl"], "interval": scores["interval"]},
    }


def lines_of(results: Row) -> list[tuple[str, dict[str, Any]]]:
    """Return every number with its name: one GAN, then each arm's mean member, best and mixture."""
    out = []
    if "apart" in results["arms"]:
        out.append(("one GAN", results["arms"]["apart"]["found"]["members"][0]))
    for row in (results["arms"][name] for name in ARMS if name in results["arms"]):
        out += [(f"{row['label']}, {kind}", row["found"][kind]) for kind in ("mean", "best", "mixture")]
    return out


def table(results: Row) -> str:
    """Return a table of the published results and of these."""
    lines = [("method", "modes", "KL"), *((name, *cells) for name, cells in PUBLISHED.items())]
    lines += [(f"{name}: here", f"{one['modes']:,.1f}", f"{one['kl']:.3f}") for name, one in lines_of(results)]
    return "\n".join(text_table(lines))


def draw(results: Row, path: Path) -> None:
    """Draw bars of modes and of KL; dots are the members."""
    from matplotlib.figure import Figure

    lines = lines_of(results)
    figure = Figure(figsize=(9.5, 0.5 * len(lines) + 1.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    at = range(len(lines))
    for a, number, words in zip(axes, ("modes", "kl"), ("modes of 1,000", "KL, nats"), strict=True):
        a.barh(at, [one[number] for _, one in lines], color=pictures.GENERATED, height=0.6)
        for row in results["arms"].values():
            y = next(i for i, (name, _) in enumerate(lines) if name == f"{row['label']}, mean")
            own = [one[number] for one in row["found"]["members"]]
            a.scatter(own, [y] * len(own), color=pictures.INK, s=14, zorder=3)
        a.set_title(words, color=pictures.INK, fontsize=10, loc="left")
        a.spines[["top", "right"]].set_visible(False)
        a.tick_params(colors=pictures.INK, labelsize=8)
    axes[0].set_yticks(list(at), [name for name, _ in lines])
    axes[0].invert_yaxis()
    figure.supxlabel("dots: the members; each from its own samples", color=pictures.INK, fontsize=9)
    pictures.save(figure, path)


def main() -> None:
    args = parser(__doc__, list(ARMS), SAMPLES).parse_args()
    args.runs = args.runs or Path("runs/gap-stacked")
    path = args.o or HERE / "gap-stacked.json"
    settings = {key: getattr(args, key) for key in ("seed", "budget", "set", "n")}
    results = opened(path, settings) | {"benchmark": "gap_stacked", "published": PUBLISHED}

    def measure(_: str, row: Row) -> Iterator[Row]:
        if "found" not in row:
            yield {"found": measured(row["run"], args.n)}

    each(ARMS, args, results, path, measure)
    results["table"] = table(results)
    write(results, path)
    draw(results, path.with_suffix(".png"))
    print(f"{results['table']}\n{path}")


if __name__ == "__main__":
    run_main(main)

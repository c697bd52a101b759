"""Tables and one plot of several quickstart runs: means over the seeds, each seed a thin line.

The last table parts what PPO changed: how often all lookups of a question are made, and how often they end in the right answer.

for seed in 0 1 2; do bash quickstart.sh --mode multi --seed $seed; bash quickstart.sh --mode single --seed $seed; done
python scripts/summarise_seeds.py outputs/quickstart --plot docs/em_over_steps.png
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from rag_r1.evaluation.results import Record, read_records
from rag_r1.evaluation.summary import SummaryRow, summarise
from rag_r1.evaluation.training_metrics import read_metrics

MODES = {"single": "#D55E00", "multi": "#0072B2"}
LOOKUPS = {"single_hop": 1, "bridge": 2, "comparison": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the quickstart's --out, with seed*/{single,multi} in it")
    parser.add_argument("--plot", type=Path, help="PNG of EM over PPO steps")
    args = parser.parse_args()
    for sampling in ("greedy", "sampled"):
        print(f"\n{sampling}\n\n| mode | kind | EM before | EM after | change | rounds before | rounds after | seeds |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for mode in MODES:
            print("\n".join(rows(args.folder, mode, sampling)))
    print("\nsampled: share of questions with every lookup made, and EM with and without\n")
    print("| mode | kind | lookups made, before | after | EM with them, before | after | EM without, before | after |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mode in MODES:
        print("\n".join(lookup_rows(args.folder, mode)))
    if args.plot:
        plot(args.folder, args.plot)


def finished(folder: Path, mode: str, sampling: str) -> list[tuple[list[Record], list[Record]]]:
    """Records before and after PPO of every run that has both."""
    paths = [
        [run / f"{when}-{sampling}" / "results.jsonl" for when in ("before", "after")]
        for run in sorted(folder.glob(f"seed*/{mode}"))
    ]
    return [
        (read_records(before), read_records(after)) for before, after in paths if before.exists() and after.exists()
    ]


def rows(folder: Path, mode: str, sampling: str) -> list[str]:
    """Lines of the table: a kind each, then the total."""
    found: defaultdict[str, list[tuple[SummaryRow, SummaryRow]]] = defaultdict(list)
    for pair in finished(folder, mode, sampling):
        before, after = ({row.kind: row for row in summarise(records)} for records in pair)
        for kind, row in after.items():
            found[kind].append((before[kind], row))
    return [
        f"| {mode} | {kind} | {mean(b.em for b, _ in pairs):.3f} | {mean(a.em for _, a in pairs):.3f} "
        f"| {mean(a.em - b.em for b, a in pairs):+.3f} | {mean(b.rounds for b, _ in pairs):.2f} "
        f"| {mean(a.rounds for _, a in pairs):.2f} | {len(pairs)} |"
        for kind, pairs in found.items()
    ]


def lookup_rows(folder: Path, mode: str) -> list[str]:
    """Lines of the table of lookups, one a kind. All questions of all seeds count alike."""
    before_after = [
        [r for records in of_seeds for r in records]
        for of_seeds in zip(*finished(folder, mode, "sampled"), strict=True)
    ]
    lines = []
    for kind in LOOKUPS if before_after else ():
        with_them, without = (
            [
                [r["metrics"]["em"] for r in records if r["kind"] == kind and all_looked_up(r) is made]
                for records in before_after
            ]
            for made in (True, False)
        )
        shares = [f"{len(done) / (len(done) + len(rest)):.3f}" for done, rest in zip(with_them, without, strict=True)]
        scores = [f"{mean(ems):.3f} ({len(ems)})" if ems else "-" for ems in (*with_them, *without)]
        lines.append(f"| {mode} | {kind} | {' | '.join(shares + scores)} |")
    return lines


def all_looked_up(record: Record) -> bool:
    """True if as many different names were searched as the question needs; in the toy only names begin with a capital."""
    queries = (query for turn in record["turns"] if turn["executed"] for query in turn["queries"])
    names = {word for query in queries for word in query.split() if word[0].isupper()}
    return len(names) >= LOOKUPS[record["kind"]]


def plot(folder: Path, path: Path) -> None:
    figure = Figure(figsize=(8.4, 3.6), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(MODES), sharey=True)
    for axis, (mode, colour) in zip(axes, MODES.items(), strict=True):
        curves = [read_metrics(run)["search/em"] for run in sorted(folder.glob(f"seed*/{mode}/ppo"))]
        for curve in curves:
            axis.plot(list(curve), list(curve.values()), color=colour, linewidth=0.8, alpha=0.4)
        if curves:
            steps = sorted(set.intersection(*map(set, curves)))
            axis.plot(steps, [mean(curve[step] for curve in curves) for step in steps], color=colour, linewidth=2.4)
        axis.set_title(f"{mode}-query, {len(curves)} seeds and their mean", loc="left", fontsize=10)
        axis.set_xlabel("PPO step")
        axis.set_ylim(0, 1)
        axis.grid(axis="y", color="#e5e7eb")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("exact match of the training batch (sampled)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()

"""One report of evaluations before and after training: Markdown, and HTML that needs no other file.

python scripts/report.py --before RUN/before-greedy RUN/before-sampled --after RUN/after-greedy RUN/after-sampled \
    --metrics RUN/ppo --fact checkpoint=RUN/global_step_24 --out RUN/report
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rag_r1.evaluation.report import write_report


def main() -> None:
    parser = argparse.ArgumentParser(description="Report of evaluations before and after training.")
    parser.add_argument("--before", nargs="*", type=Path, default=[], help="results.jsonl files, or their folders")
    parser.add_argument(
        "--after", nargs="+", type=Path, required=True, help="matched with --before by how they sampled"
    )
    parser.add_argument("--metrics", type=Path, help="folder of the training run, or one metrics.jsonl")
    parser.add_argument(
        "--fact", action="append", default=[], metavar="NAME=VALUE", help="a line for the settings table"
    )
    parser.add_argument("--title", default="RAG-R1: training report")
    parser.add_argument("--out", type=Path, required=True, help="folder for report.md, report.html and plots/")
    args = parser.parse_args()
    wrong = [fact for fact in args.fact if "=" not in fact]
    if wrong:
        parser.error(f"--fact {wrong[0]!r} must be NAME=VALUE")
    try:
        report = write_report(
            args.out,
            before=args.before,
            after=args.after,
            metrics=args.metrics,
            facts=dict(fact.split("=", 1) for fact in args.fact),
            title=args.title,
        )
    except (OSError, ValueError) as error:
        sys.exit(f"report.py: {error}")
    for name, table in report.tables.items():
        table.show(name)
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"report: {report.html}\n        {report.markdown}")


if __name__ == "__main__":
    main()

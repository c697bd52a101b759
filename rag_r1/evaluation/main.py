"""Command line of an evaluation: `python scripts/evaluate.py model=DIR data=FILE rag_r1.protocol=NAME out_dir=DIR`.

Loads model and questions, checks the retriever, runs `evaluate` and prints the table. The same command again continues
a run that was stopped, and retries the questions that failed.

Exit status: 0 all scored, 1 some questions failed (named), 2 it could not start, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rag_r1.data import QuestionRow, read_questions
from rag_r1.evaluation.document import Heading, Table, Text, to_markdown
from rag_r1.evaluation.results import Record
from rag_r1.evaluation.runner import evaluate
from rag_r1.evaluation.settings import EvaluationSettings, data_facts, limit_rows, model_facts
from rag_r1.evaluation.summary import summarise, to_table
from rag_r1.protocols import Protocol, get_protocol
from rag_r1.retrieval.client import RetrievalClient
from rag_r1.retrieval.types import RetrievalError
from rag_r1.rollout import GenerationManager, SamplingParams

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"


@hydra.main(config_path=str(CONFIG_DIR), config_name="evaluate", version_base=None)
def main(config: Any) -> None:
    try:
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        settings = EvaluationSettings.from_config(values)
        records = asyncio.run(run_evaluation(settings))
    except KeyboardInterrupt:
        print("stopped; what is scored is kept, and the same command goes on from there", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, OSError, RetrievalError, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    raise SystemExit(show(records, settings))


async def run_evaluation(settings: EvaluationSettings, *, progress: bool = True) -> list[Record]:
    """One evaluation as `settings` say; records in the order of the questions, into `out_dir`/results.jsonl.

    ValueError or OSError for settings, data or a model that cannot be used, RetrievalError where no retriever answers.
    """
    rows = limit_rows(read_questions(settings.data), settings.limit_per_kind)
    protocol = get_protocol(settings.protocol, settings.prompt_file)
    retriever = RetrievalClient(settings.retriever_url, timeout_s=settings.timeout_s, max_retries=settings.max_retries)
    async with retriever:
        health = await retriever.health()
        facts = {
            "model": model_facts(settings.model),
            "data": data_facts(settings.data),
            "retriever": {name: health.get(name) for name in ("index_id", "rows", "encoder")},
            "engine": {"name": settings.engine, "dtype": settings.dtype},
        }
        return await _run_transformers(settings, rows, protocol, retriever, facts, progress)


async def _run_transformers(
    settings: EvaluationSettings,
    rows: Sequence[QuestionRow],
    protocol: Protocol,
    retriever: RetrievalClient,
    facts: dict[str, Any],
    progress: bool,
) -> list[Record]:
    # torch takes seconds to import: not before everything cheap is known to be right
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rag_r1.rollout.transformers_engine import TransformersEngine

    device = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    dtype = ("float32" if device == "cpu" else "bfloat16") if settings.dtype == "auto" else settings.dtype
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    model = AutoModelForCausalLM.from_pretrained(
        settings.model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    facts["engine"]["dtype"] = dtype
    with TransformersEngine(model, tokenizer, max_batch=settings.concurrency, device=device) as engine:
        manager = GenerationManager(engine, retriever, tokenizer, protocol, settings.budget, topk=settings.topk)
        return await evaluate(
            rows,
            manager,
            SamplingParams(
                max_tokens=settings.budget.max_turn_tokens,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                seed=settings.seed,
            ),
            out_path=Path(settings.out_dir) / "results.jsonl",
            concurrency=settings.concurrency,
            n=settings.n,
            settings=facts,
            progress=progress,
        )


def show(records: Sequence[Record], settings: EvaluationSettings) -> int:
    """Print the table, write summary.md, name what failed; return the exit status."""
    out = Path(settings.out_dir)
    rows = summarise(records)
    title = f"{settings.model}: {settings.protocol}, temperature {settings.temperature:g}, {settings.data}"
    full = to_table(rows)
    Table(full.header[:-1], [row[:-1] for row in full.rows], total=True).show(title)
    print(f"ended by: {full.rows[-1][-1]}")
    (out / "summary.md").write_text(to_markdown([Heading("Evaluation"), Text(title), full]), encoding="utf-8")
    print(f"results: {out / 'results.jsonl'}\nsummary: {out / 'summary.md'}")
    failed = [record for record in records if record["failed"]]
    if not failed:
        return 0
    print(f"error: {len(failed)} of {len(records)} samples failed and are missing from the figures:", file=sys.stderr)
    for record in failed[:10]:
        print(
            f"  {record['id']} (sample {record['sample']}): {record['end_reason']}: {record['error']}", file=sys.stderr
        )
    if len(failed) > 10:
        print(f"  ... and {len(failed) - 10} more; see failed=true in {out / 'results.jsonl'}", file=sys.stderr)
    print("the same command again retries only these", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()

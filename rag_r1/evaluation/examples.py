"""Trajectories worth reading: what training mended, what it broke, and what is still wrong."""

from __future__ import annotations

from collections.abc import Sequence

from rag_r1.evaluation.document import Block, Example, Heading, Text
from rag_r1.evaluation.results import Record, key
from rag_r1.evaluation.summary import kind_of

PASSAGE_CHARACTERS = 240


def example_blocks(name: str, before: Sequence[Record], after: Sequence[Record]) -> list[Block]:
    """Best and worst of `after`, with the same question's trajectory `before` where the two differ in EM.

    One of each question kind. Best: wrong before and right after, longest first (they show most); then right ones.
    Worst: right before and wrong after; then wrong ones.
    """
    earlier = {key(record): record for record in before if not record["failed"]}
    scored = [record for record in after if not record["failed"]]

    def changed(record: Record) -> bool:
        other = earlier.get(key(record))
        return other is not None and other["metrics"]["em"] != record["metrics"]["em"]

    ranked = sorted(scored, key=lambda record: (not changed(record), -record["metrics"]["rounds"]))
    blocks: list[Block] = [Heading(f"Trajectories to read: {name}")]
    for title, em in (("Best", 1.0), ("Worst", 0.0)):
        of_each_kind: dict[str, Record] = {}
        for record in ranked:
            if record["metrics"]["em"] == em:
                of_each_kind.setdefault(kind_of(record), record)
        blocks.append(Heading(title, 3) if of_each_kind else Text(f"{title}: there are none."))
        for record in of_each_kind.values():
            blocks.append(_example(record, "after training"))
            if changed(record):
                blocks.append(_example(earlier[key(record)], "before training"))
    return blocks


def _example(record: Record, when: str) -> Example:
    verdict = "right" if record["metrics"]["em"] else "wrong"
    title = f"{record['question']} ({kind_of(record)}, {when}: {verdict}, {record['end_reason']})"
    lines = [f"gold:   {' | '.join(record['golden_answers'])}", f"answer: {record['answer'] or '-'}", ""]
    for number, turn in enumerate(record["turns"], start=1):
        note = f": {turn['reason']}" if turn["reason"] else ""
        lines += [f"--- turn {number} ({turn['action']}{note}, {turn['tokens']} tokens)", turn["text"].strip()]
        if turn["executed"]:
            for query, passages in zip(turn["queries"], turn["passages"], strict=True):
                lines.append(f"    [{query}]")
                lines += [f"      {p['score']:.3f}  #{p['id']}  {_short(p.get('contents', ''))}" for p in passages]
    return Example(title, "\n".join(lines))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PASSAGE_CHARACTERS else line[: PASSAGE_CHARACTERS - 1] + "…"

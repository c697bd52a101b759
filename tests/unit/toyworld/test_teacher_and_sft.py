"""What the teacher shows, what SFT makes of it, and that both are what a rollout makes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_fakes import ByTitle
from transformers import Qwen2ForCausalLM

from rag_r1.data import QuestionRow
from rag_r1.protocols import PROTOCOLS, Search
from rag_r1.retrieval.types import Passage
from rag_r1.rewards import exact_match
from rag_r1.rollout import Budget, Generation, GenerationManager, SamplingParams
from rag_r1.toyworld import TOPK, toy_protocol
from rag_r1.toyworld.curriculum import LAZINESS, Recipe, Remembered, sft_rows
from rag_r1.toyworld.policy import policy_config
from rag_r1.toyworld.questions import KINDS
from rag_r1.toyworld.teacher import LAZY, Demonstration, PageNotFound, Teacher
from rag_r1.toyworld.world import World
from rag_r1.training.sft import IGNORED, Example, collate, encode_row, make_batches, read_rows

RECIPE = Recipe(notes=6, smallest=6, first_turns=4, single_hop=6, whole=6)


def demonstrate(mode: str, rows: Sequence[QuestionRow], retriever: Any, **options: Any) -> list[Demonstration]:
    teacher = Teacher(toy_protocol(mode), retriever, topk=TOPK, **options)

    async def all_of_them() -> list[Demonstration]:
        return [await teacher.demonstrate(row) for row in rows]

    return asyncio.run(all_of_them())


def as_row(demo: Demonstration) -> dict[str, Any]:
    return {
        "messages": toy_protocol(demo.protocol).messages(demo.row.question),
        "segments": [asdict(segment) for segment in demo.segments],
    }


# -- the teacher -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_a_diligent_teacher_is_right_and_needs_the_rounds_of_its_mode(
    mode: str, questions: list[QuestionRow], retriever: ByTitle
) -> None:
    for demo in demonstrate(mode, questions, retriever):
        assert exact_match(demo.answer, demo.row.golden_answers) == 1.0
        assert not demo.lazy
        lookups = 1 if demo.row.kind == "single_hop" else 2
        at_once = demo.row.kind == "comparison" and mode == "multi_query"
        assert demo.rounds == (1 if at_once else lookups)
    assert sum(map(len, retriever.calls)) == sum(1 if row.kind == "single_hop" else 2 for row in questions)


def test_the_teacher_reads_the_passages_and_not_the_golden_answer(
    questions: list[QuestionRow], retriever: ByTitle
) -> None:
    row = next(row for row in questions if row.metadata["form"] == "city_country")
    (name,) = row.metadata["subjects"]
    retriever.passages[name] = Passage(0, f"{name}   {name} is a city in the country Zornu.", 1.0)
    (demo,) = demonstrate("single_query", [row], retriever)
    assert demo.answer == "Zornu" != row.golden_answers[0]


def test_a_page_that_is_not_found_ends_the_demonstration(
    questions: list[QuestionRow], worlds: dict[str, World]
) -> None:
    with pytest.raises(PageNotFound, match="among the top 2"):
        demonstrate("multi_query", questions[:1], ByTitle(worlds["rl_heldout"]))


def test_shares_of_laziness_are_kept_and_lazy_answers_are_wrong(
    questions: list[QuestionRow], retriever: ByTitle
) -> None:
    rows = [row for row in questions if row.kind == "bridge"] * 20
    demos = demonstrate("multi_query", rows, retriever, laziness=LAZINESS, seed=1)
    counts = Counter(demo.lazy for demo in demos)
    for lazy, share in LAZINESS["bridge"].items():
        assert counts[lazy] / len(demos) == pytest.approx(share, abs=0.08)
    for demo in demos:
        right = exact_match(demo.answer, demo.row.golden_answers)
        assert right == 1.0 if not demo.lazy else right == 0.0
        assert demo.rounds == {"": 2, "half_way": 1, "nameless": 1, "guess": 0}[demo.lazy]
    again = demonstrate("multi_query", rows, retriever, laziness=LAZINESS, seed=1)
    assert [demo.segments for demo in again] == [demo.segments for demo in demos]


def test_laziness_names_known_sorts_and_leaves_some_diligence() -> None:
    assert set(LAZINESS) <= set(KINDS)
    for shares in LAZINESS.values():
        assert set(shares) <= set(LAZY)
        assert sum(shares.values()) < 1


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_segments_alternate_and_observations_are_the_protocol_s(
    mode: str, questions: list[QuestionRow], retriever: ByTitle
) -> None:
    protocol = toy_protocol(mode)
    for demo in demonstrate(mode, questions, retriever):
        assert [segment.is_model for segment in demo.segments] == [i % 2 == 0 for i in range(2 * demo.rounds + 1)]
        for turn, shown in zip(demo.segments[0::2], demo.segments[1::2], strict=False):
            action = protocol.parse(turn.text)
            assert isinstance(action, Search)
            found = asyncio.run(retriever.search(action.queries, TOPK))
            documents = [protocol.documents([passage.contents for passage in each]) for each in found]
            assert shown.text == protocol.observation(action, documents)
            assert turn.text.endswith("</search>")
        assert demo.segments[-1].text.endswith("</answer>")


# -- rows: ids and masks -----------------------------------------------------------------------------------------------


class Replay:
    """An engine that plays back the policy turns of a demonstration, as ids."""

    def __init__(self, turns: list[list[int]]) -> None:
        self.turns = turns

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        ids = self.turns.pop(0)
        return Generation(ids, [-0.1] * len(ids), "stop")


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_case_37_and_53_sft_ids_and_mask_are_those_of_the_rollout(
    mode: str, questions: list[QuestionRow], retriever: ByTitle, tokenizer: Any
) -> None:
    for demo in demonstrate(mode, questions, retriever):
        example = encode_row(as_row(demo), tokenizer)
        turns = [tokenizer.encode(segment.text, add_special_tokens=False) for segment in demo.segments[0::2]]
        manager = GenerationManager(Replay(turns), retriever, tokenizer, toy_protocol(mode), Budget(), topk=TOPK)
        trajectory = asyncio.run(manager.run(demo.row.question, SamplingParams(max_tokens=200)))
        assert trajectory.end_reason == "answer"
        assert trajectory.answer == demo.answer
        assert example.ids == trajectory.ids
        mask = [0] * len(trajectory.prompt_ids) + list(trajectory.response_mask)
        assert [int(label != IGNORED) for label in example.labels] == mask


def test_case_42_loss_is_on_model_written_tokens_only(
    questions: list[QuestionRow], retriever: ByTitle, tokenizer: Any
) -> None:
    rows = [as_row(demo) for demo in demonstrate("multi_query", questions[:4], retriever)]
    examples = [encode_row(row, tokenizer) for row in rows]
    for row, example in zip(rows, examples, strict=True):
        written = "".join(segment["text"] for segment in row["segments"] if segment["is_model"])
        assert tokenizer.decode([label for label in example.labels if label != IGNORED]) == written
    batch = collate(examples, tokenizer.pad_token_id)
    config = policy_config(tokenizer)
    config.update(
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    )
    output = Qwen2ForCausalLM(config)(**batch)
    output.logits.retain_grad()
    output.loss.backward()
    has_gradient = output.logits.grad.abs().sum(-1) > 0  # (B, T): position t predicts token t + 1
    assert torch.equal(has_gradient[:, :-1], batch["labels"][:, 1:] != IGNORED)
    assert not has_gradient[:, -1].any()


def test_padding_on_the_right_changes_nothing_for_the_row(tokenizer: Any) -> None:
    short, long = Example([5, 6, 7], [IGNORED, 6, 7], 0), Example([9] * 8, [IGNORED] + [9] * 7, 0)
    config = policy_config(tokenizer)
    config.update(
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    )
    policy = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        alone = policy(input_ids=collate([short], 0)["input_ids"]).logits[0]
        padded = policy(input_ids=collate([short, long], 0)["input_ids"]).logits[0, :3]
    torch.testing.assert_close(alone, padded)


# -- the curriculum and its batches ------------------------------------------------------------------------------------


def test_curriculum_is_deterministic_and_goes_from_short_to_whole(worlds: dict[str, World]) -> None:
    world = worlds["sft"]
    rows, again = (asyncio.run(sft_rows(world, ByTitle(world), RECIPE, seed=1)) for _ in range(2))
    assert rows == again
    assert [row["stage"] for row in rows] == sorted(row["stage"] for row in rows)
    whole = Counter((row["kind"], row["protocol"]) for row in rows if row["stage"] == 2)
    assert whole == {(kind, mode): 6 for kind in KINDS for mode in PROTOCOLS}
    assert {row["kind"] for row in rows if row["stage"] == 1} == {"single_hop"}
    assert all(len(row["segments"]) == 1 for row in rows if row["stage"] == 0)
    assert all(not row["lazy"] for row in rows if row["stage"] == 1)


def test_remembered_asks_once_a_query(retriever: ByTitle) -> None:
    remembered = Remembered(retriever, TOPK)
    names = list(retriever.passages)[:3]

    async def ask() -> None:
        await remembered.fetch([*names, names[0]])
        assert [found[0].contents.split()[0] for found in await remembered.search(names[::-1], TOPK)] == names[::-1]
        with pytest.raises(ValueError, match="only 2 passages"):
            await remembered.search(names, TOPK + 1)

    asyncio.run(ask())
    assert retriever.calls == [tuple(names)]


def test_batches_keep_stages_in_order_lose_no_row_and_fit_the_budget() -> None:
    examples = [Example([i] * (1 + i % 30), [i] * (1 + i % 30), stage=i % 3) for i in range(200)]
    batches = make_batches(examples, batch_tokens=100, epochs=1, seed=0)
    assert [batch[0].stage for batch in batches] == sorted(batch[0].stage for batch in batches)
    assert all(len({row.stage for row in batch}) == 1 for batch in batches)
    assert sorted(row.ids[0] for batch in batches for row in batch) == list(range(200))
    assert max(len(batch) * max(len(row.ids) for row in batch) for batch in batches) <= 100
    assert make_batches(examples, 100, 1, seed=0) == batches != make_batches(examples, 100, 1, seed=1)
    (alone,) = make_batches([Example([1] * 150, [1] * 150, 0)], 100, 1, 0)
    assert len(alone) == 1


def test_a_file_that_holds_no_rows_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "sft.jsonl"
    good = {"messages": [], "segments": [{"text": "a", "is_model": True}]}
    for bad, problem in (
        ({"messages": []}, "lacks \\['segments'\\]"),
        ({"messages": [], "segments": [{"text": "a", "is_model": False}]}, "no segment written by the model"),
    ):
        path.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
        with pytest.raises(ValueError, match=f"line 2: the row .*{problem}"):
            read_rows(path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"make_toy_data\.py"):
        read_rows(path)

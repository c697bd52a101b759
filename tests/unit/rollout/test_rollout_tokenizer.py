"""The prompt and observations with a real `transformers` tokenizer, built here from nothing."""

from __future__ import annotations

import asyncio

import pytest
from rollout_fakes import FakeRetriever, ScriptedEngine
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rag_r1.protocols import get_protocol
from rag_r1.rollout import GenerationManager, SamplingParams, encode_prompt

MESSAGES = [{"role": "user", "content": "Who wrote Rusalka?"}]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(*, chat: bool, closing_eos: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["<search> who </search> <answer> what </answer> hello the"] * 5, trainer)
    if closing_eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|im_end|>", special_tokens=[("<|im_end|>", tokenizer.token_to_id("<|im_end|>"))]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    if chat:
        fast.chat_template = TEMPLATE
    return fast


def test_chat_template_is_applied_once_with_the_generation_prompt() -> None:
    tokenizer = byte_level(chat=True)
    ids = encode_prompt(tokenizer, MESSAGES)
    assert isinstance(ids, list) and all(isinstance(i, int) for i in ids)
    expected = "<|im_start|>user\nWho wrote Rusalka?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids) == expected


def test_case_75_closing_eos_is_taken_off_a_plain_prompt() -> None:
    tokenizer = byte_level(chat=False, closing_eos=True)
    assert tokenizer.encode("a")[-1] == tokenizer.eos_token_id
    ids = encode_prompt(tokenizer, MESSAGES)
    assert tokenizer.decode(ids) == "Who wrote Rusalka?"


@pytest.mark.parametrize("chat", [True, False])
def test_a_rollout_adds_no_special_tokens(chat: bool) -> None:
    tokenizer = byte_level(chat=chat, closing_eos=True)
    engine = ScriptedEngine(tokenizer, ["<search> Dvořák </search>", "<answer> Dvořák </answer>"])
    manager = GenerationManager(engine, FakeRetriever(), tokenizer, get_protocol("multi_query"))
    t = asyncio.run(manager.run("Who wrote Rusalka?", SamplingParams(max_tokens=200)))
    assert t.answer == "Dvořák" and t.turns[0].queries == ("Dvořák",)
    assert tokenizer.eos_token_id not in t.response_ids
    assert "about Dvořák" in tokenizer.decode(t.response_ids)

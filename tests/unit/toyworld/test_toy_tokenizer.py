from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rag_r1.protocols import PROTOCOLS, Invalid
from rag_r1.rollout import encode_prompt
from rag_r1.toyworld import toy_protocol
from rag_r1.toyworld.policy import build_policy, policy_config
from rag_r1.toyworld.tokenizer import TAGS, build_tokenizer
from rag_r1.toyworld.world import FIRST_SYLLABLES, LAST_SYLLABLES, World

TOKENIZER = build_tokenizer()
TOY_PIECES = st.sampled_from(
    [*TAGS, "<|user|>", "<|end|>", "need the city of ", "Doc 1: ", "\n", '",\n    "', "1953", " ", *LAST_SYLLABLES[:5]]
)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@given(st.one_of(st.text(), st.lists(st.one_of(TOY_PIECES, st.text(max_size=3))).map("".join)))
def test_every_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_one_token_wherever_it_stands_and_survives_decoding(tag: str) -> None:
    (token,) = encode(tag)
    assert TOKENIZER.decode([token], skip_special_tokens=True) == tag
    assert encode(f"Kalmo{tag}Kalmo").count(token) == 1
    assert encode(f" {tag} ").count(token) == 1
    assert token not in encode(tag[:-1]) + encode(tag[1:]) + encode(tag.upper())


def test_pad_and_eos_differ_and_are_no_text() -> None:
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    assert TOKENIZER.decode([TOKENIZER.pad_token_id, TOKENIZER.eos_token_id], skip_special_tokens=True) == ""


@pytest.mark.parametrize(
    "around", ["{}", " {} ", '"{}"', "of {}.", "<search>{}</search>", '["{}",\n"x"]', "Doc 1: {}   {}"]
)
def test_a_name_is_the_same_two_tokens_everywhere(around: str) -> None:
    name = FIRST_SYLLABLES[3] + LAST_SYLLABLES[5]
    pair = encode(name)
    assert len(pair) == 2
    ids = encode(around.format(name, name))
    assert pair in [ids[i : i + 2] for i in range(len(ids))]


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_no_toy_text_falls_apart_into_bytes(mode: str, world: World, questions: Any) -> None:
    protocol = toy_protocol(mode)
    texts = [protocol.messages(row.question)[0]["content"] for row in questions]
    texts += [entity.sentence() for entity in world.entities.values()]
    single_bytes = {token for token, i in TOKENIZER.get_vocab().items() if len(token) == 1 and token.isalpha()}
    for text in texts:
        assert not single_bytes & set(TOKENIZER.tokenize(text)), text
    # an invalid turn's hint may be spelled out, but must fit the budget of an observation
    assert len(encode(protocol.hint(Invalid("no_action")))) < 160


def test_autotokenizer_loads_the_same_tokenizer_beside_a_qwen2_config(tmp_path: Path) -> None:
    """transformers 5 would take Qwen2Tokenizer, by the model's type, and split a name into bytes."""
    text = "<think>need the city of Kanru</think><search>Kanru, Benda</search>"
    for folder in (tmp_path / "once", tmp_path / "twice"):
        tokenizer = TOKENIZER if folder.name == "once" else AutoTokenizer.from_pretrained(tmp_path / "once")
        tokenizer.save_pretrained(folder)
        policy_config(TOKENIZER).save_pretrained(folder)
        loaded = AutoTokenizer.from_pretrained(folder)
        assert loaded.encode(text, add_special_tokens=False) == encode(text)
        assert len(loaded) == len(TOKENIZER)
        assert (loaded.pad_token_id, loaded.eos_token_id) == (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id)
        messages = toy_protocol("multi_query").messages("Who directed the film Kanru?")
        assert encode_prompt(loaded, messages) == encode_prompt(TOKENIZER, messages)


def test_chat_template_ends_where_the_policy_starts_to_write() -> None:
    messages = [{"role": "user", "content": "Who?"}]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>Who?<|end|><|assistant|>"
    assert TOKENIZER.decode(encode_prompt(TOKENIZER, messages)) == text


def test_policy_is_a_function_of_the_seed_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (build_policy(TOKENIZER, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_policy_fits_the_tokenizer_and_is_small() -> None:
    policy = build_policy(TOKENIZER)
    assert policy.config.vocab_size == len(TOKENIZER)
    assert policy.config.pad_token_id == TOKENIZER.pad_token_id
    assert policy.dtype == torch.float32
    assert 500_000 < policy.num_parameters() < 2_000_000


def test_head_0_of_layer_0_prefers_the_token_before() -> None:
    """By its biases alone it looks one token back; with its random weights on top, still more there than anywhere else."""
    policy = build_policy(TOKENIZER)
    policy.config._attn_implementation = "eager"
    ids = torch.tensor([encode("Kanru is a person born in the city Benda in the year 1957.")])

    def head_0() -> torch.Tensor:
        with torch.no_grad():
            return policy(input_ids=ids, output_attentions=True).attentions[0][0, 0]  # (T, T)

    by_distance = [head_0().diagonal(-back).mean() for back in range(4)]
    assert max(range(4), key=by_distance.__getitem__) == 1
    for projection in ("q_proj", "k_proj"):
        torch.nn.init.zeros_(getattr(policy.model.layers[0].self_attn, projection).weight)
    assert torch.equal(head_0()[1:].argmax(-1), torch.arange(ids.shape[1] - 1))

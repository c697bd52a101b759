"""The tiny policy: Qwen2's architecture at 0.9 M parameters, random at the start.

The sizes are the smallest that were seen to learn copying from passages within minutes on one CPU core. Two of them
are not scaled-down habits: a rope theta of 500 (sequences have some hundred tokens; a large theta wastes the few
frequencies of a 32-wide head) and a standard deviation of 0.05 at initialisation (0.02 makes attention start so flat
that copying appears much later).
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM


def policy_config(tokenizer: PreTrainedTokenizerBase, *, max_position_embeddings: int = 2048) -> Qwen2Config:
    """The configuration of the tiny policy for `tokenizer`'s vocabulary and special ids."""
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        initializer_range=0.05,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def build_policy(tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Qwen2ForCausalLM:
    """A randomly initialised policy in fp32, on the CPU, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(policy_config(tokenizer))

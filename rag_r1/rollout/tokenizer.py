"""The part of a Hugging Face tokenizer that a rollout needs, and the prompt as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """`chat_template`, `apply_chat_template` and `eos_token_id` are used where they exist."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


def encode_prompt(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    """Ids of the opening messages: through the chat template where the tokenizer has one, else as plain text."""
    chat: Any = tokenizer
    if getattr(tokenizer, "chat_template", None):
        ids = chat.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [int(token) for token in ids]
    ids = list(tokenizer.encode("".join(message["content"] for message in messages), add_special_tokens=True))
    # Some tokenizers close every text with an eos; after one, a policy has nothing to say.
    while ids and ids[-1] == getattr(tokenizer, "eos_token_id", None):
        ids.pop()
    return ids

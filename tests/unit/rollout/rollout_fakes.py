"""Test doubles of the rollout tests: a tokenizer with merges, a scripted engine, a scripted retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rag_r1.retrieval.types import Passage, RetrievalError
from rag_r1.rollout import Generation, SamplingParams

PIECES = [
    "</search>\n",
    "</search>",
    "<search>",
    "</answer>",
    "<answer>",
    "</think>",
    "<think>",
    "hello",
    "he",
    "llo",
    " the",
]


class MergeTokenizer:
    """Bytes, merged pieces (longest match first) and an eos: ids 0-255, 256.., and the last one."""

    chat_template: str | None = None

    def __init__(self, *, add_eos: bool = False) -> None:
        self.table: list[bytes] = [bytes([b]) for b in range(256)] + [piece.encode() for piece in PIECES]
        self.eos_token_id = len(self.table)
        self.vocab_size = len(self.table) + 1
        self.add_eos = add_eos
        self.encoded: list[str] = []
        """Every text that was encoded, to see what went through the tokenizer."""

    def piece(self, text: str) -> int:
        return 256 + PIECES.index(text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(text)
        ids, rest = [], text.encode()
        while rest:
            merged = [i for i in range(256, self.eos_token_id) if rest.startswith(self.table[i])]
            token = max(merged, key=lambda i: len(self.table[i]), default=rest[0])
            ids.append(token)
            rest = rest[len(self.table[token]) :]
        return [*ids, self.eos_token_id] if add_special_tokens and self.add_eos else ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        eos = b"" if skip_special_tokens else b"<eos>"
        parts = [eos if i == self.eos_token_id else self.table[i] for i in token_ids]
        return b"".join(parts).decode(errors="replace")


class ChatTokenizer(MergeTokenizer):
    chat_template = "yes"

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool
    ) -> list[int]:
        assert add_generation_prompt and tokenize and not return_dict
        text = "".join(f"[{m['role']}]{m['content']}[end]" for m in messages) + "[assistant]"
        return self.encode(text, add_special_tokens=False)


class CharTokenizer:
    """One token a character (its code point)."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


Turn = str | list[int] | Exception | Generation


class ScriptedEngine:
    """Plays one scripted turn a call, token by token, and stops as a real engine does."""

    def __init__(self, tokenizer: MergeTokenizer | CharTokenizer, turns: Sequence[Turn], delay_s: float = 0.0) -> None:
        self.tokenizer = tokenizer
        self.turns = list(turns)
        self.delay_s = delay_s
        self.prompts: list[list[int]] = []
        self.sampling: list[SamplingParams] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        self.prompts.append(list(prompt_ids))
        self.sampling.append(sampling)
        await asyncio.sleep(self.delay_s)
        turn = self.turns[min(len(self.prompts), len(self.turns)) - 1]
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, Generation):
            return turn
        script = self.tokenizer.encode(turn, add_special_tokens=False) if isinstance(turn, str) else turn
        ids: list[int] = []
        for token in script:
            ids.append(token)
            if any(s in self.tokenizer.decode(ids, skip_special_tokens=True) for s in sampling.stop):
                return self._result(ids, "stop")
            if token == getattr(self.tokenizer, "eos_token_id", None):
                return self._result(ids, "eos")
            if len(ids) == sampling.max_tokens:
                return self._result(ids, "length")
        return self._result([*ids, getattr(self.tokenizer, "eos_token_id", 0)], "eos")

    def _result(self, ids: list[int], reason: str) -> Generation:
        return Generation(ids, [-0.5 - i / 100 for i in range(len(ids))], reason)


class FakeRetriever:
    """`topk` passages a query, made by `contents(query, rank)`; fails where `error` is set."""

    def __init__(
        self,
        contents: Callable[[str, int], str] = lambda query, rank: f"Page {rank}   about {query}",
        error: str | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.contents, self.error, self.delay_s = contents, error, delay_s
        self.calls: list[tuple[list[str], int]] = []

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.calls.append((list(queries), topk))
        await asyncio.sleep(self.delay_s)
        if self.error:
            raise RetrievalError(self.error)
        return [
            [Passage(10 * i + r, self.contents(q, r), 1.0 / (r + 1)) for r in range(topk)]
            for i, q in enumerate(queries)
        ]

"""What a search agent writes and reads, as pure text; chosen by one setting, `protocol=single_query|multi_query`.

    protocol = get_protocol("multi_query")
    protocol.parse("<think>two facts</think><search> Ada Lovelace, Alan Turing </search>")

`base` holds the interface, `rag_r1` the protocol of the paper; another published agent is a further file and a further
entry of `PROTOCOLS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rag_r1.protocols.base import INVALID_REASONS, Action, Answer, Invalid, Protocol, Search
from rag_r1.protocols.rag_r1 import MultiQuery, SingleQuery

PROTOCOLS: Mapping[str, type[SingleQuery] | type[MultiQuery]] = MappingProxyType(
    {"single_query": SingleQuery, "multi_query": MultiQuery}
)

_PROMPTS = Path(__file__).parent / "prompts"

__all__ = [
    "INVALID_REASONS",
    "PROTOCOLS",
    "Action",
    "Answer",
    "Invalid",
    "Protocol",
    "Search",
    "get_protocol",
]


def get_protocol(name: str, prompt_file: str | None = None, max_queries: int | None = None) -> Protocol:
    """The protocol `name`, one of `PROTOCOLS`.

    Args:
        name: `single_query` or `multi_query`.
        prompt_file: UTF-8 text that replaces the protocol's own prompt, used byte for byte (also its last newline),
            e.g. the prompt of a published checkpoint. Must hold `{question}` exactly once.
        max_queries: queries a turn that are sent; None is the protocol's own limit (1 and 3).

    Raises:
        ValueError: unknown name, a prompt without `{question}`, or a limit that the protocol cannot have.
        OSError: `prompt_file` cannot be read.
    """
    if name not in PROTOCOLS:
        raise ValueError(f"protocol={name!r} is unknown: use one of {', '.join(PROTOCOLS)}")
    path = Path(prompt_file) if prompt_file else _PROMPTS / f"{name}.txt"
    # newline="" keeps a prompt with Windows line ends as it is
    with path.open(encoding="utf-8", newline="") as file:
        template = file.read()
    options: dict[str, Any] = {} if max_queries is None else {"max_queries": max_queries}
    try:
        return PROTOCOLS[name](prompt_template=template, **options)
    except ValueError as error:
        raise ValueError(f"{error} (prompt_file={str(path)!r})") from error

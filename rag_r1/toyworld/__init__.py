"""The toy: an invented encyclopedia, questions over it, and a policy small enough to learn on a CPU in minutes.

Everything downstream (corpus, index, server, protocol, SFT, PPO, evaluation) is the code that runs on Wikipedia and a
7B model; only the data and the size of the policy are toys.
"""

from __future__ import annotations

from pathlib import Path

from rag_r1.protocols import get_protocol
from rag_r1.protocols.base import Protocol

TOPK = 2
"""Passages a query: MiniLM finds the page of a toy name among the first two in all cases measured."""


def prompt_file(name: str) -> str:
    """The path of the toy's short prompt for the protocol `name`: a tiny policy has no use for instructions."""
    return str(Path(__file__).parent / "prompts" / f"{name}.txt")


def toy_protocol(name: str) -> Protocol:
    """The protocol `name` (`single_query` or `multi_query`) with the toy's short prompt."""
    return get_protocol(name, prompt_file=prompt_file(name))

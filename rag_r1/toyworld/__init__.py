"""The toy: an invented encyclopedia, questions over it, and a policy small enough to learn on a CPU in minutes.

Everything downstream (corpus, index, server, protocol, SFT, PPO, evaluation) is the code that runs on Wikipedia and a
7B model; only the data and the size of the policy are toys.
"""

from __future__ import annotations

from pathlib import Path

from rag_r1.protocols import get_protocol
from rag_r1.protocols.base import Protocol

TOPK = 2
"""Passages a query. With the title as the query, MiniLM finds the page among the first two for 99.2 % of the 2,150 pages of
training and evaluation (first: 96.3 %, three: 99.8 %), and for 97.2 % of the teacher's 5,500 pages: names have few letters and
look alike. Demonstrations whose page is missed are left out."""


def prompt_file(name: str) -> str:
    """The path of the toy's short prompt for the protocol `name`: a tiny policy has no use for instructions."""
    return str(Path(__file__).parent / "prompts" / f"{name}.txt")


def toy_protocol(name: str) -> Protocol:
    """The protocol `name` (`single_query` or `multi_query`) with the toy's short prompt."""
    return get_protocol(name, prompt_file=prompt_file(name))

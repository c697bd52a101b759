"""Format validity, the metric."""

from __future__ import annotations

import pytest

from rag_r1.rewards import format_valid

SEARCH = "<think>need it</think><search>q</search>\n"
ANSWER = "<think>have it</think>\n<answer> Oslo </answer>"


@pytest.mark.parametrize(
    "turns", [[ANSWER], [SEARCH, ANSWER], [SEARCH], ["<think>a</think> so <think>b</think>" + ANSWER]]
)
def test_valid(turns: list[str]) -> None:
    assert format_valid(turns)


@pytest.mark.parametrize(
    "turn",
    [
        "",
        "Oslo",
        "<answer>Oslo</answer>",  # no thought
        "<think>t<answer>Oslo</answer>",  # thought not closed
        "<answer>Oslo</answer><think>t</think>",  # thought after
        "<think>t</think><answer> </answer>",
        "<think>t</think><search></search>",
        "<think>t</think><search>a</search><search>b</search>",  # two actions
        "<think>t</think><search>a</answer>",
        "<think>use <search> here</think><answer>Oslo</answer>",  # tag inside the thought
        "<think>t</think><information>x</information><answer>Oslo</answer>",
    ],
)
def test_not_valid(turn: str) -> None:
    assert not format_valid([turn])
    assert not format_valid([SEARCH, turn])


def test_no_turns_are_not_valid() -> None:
    assert not format_valid([])

"""Trajectory: append-only ids, masks made on appending, the end on a policy token."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.retrieval.types import Passage
from rag_r1.rollout import END_REASONS, Trajectory, Turn

ids_lists = st.lists(st.integers(0, 1000), max_size=6)
steps = st.lists(st.tuples(st.booleans(), ids_lists), max_size=12)


def test_case_41_mask_is_made_on_appending() -> None:
    trajectory = Trajectory("t", "q", [1, 2])
    trajectory.append_policy([3, 4], [-0.1, -0.2])
    trajectory.append_observation([7, 7, 7])
    trajectory.append_policy([5], [-0.3])
    trajectory.finish("answer")
    assert trajectory.ids == [1, 2, 3, 4, 7, 7, 7, 5]
    assert trajectory.response_mask == [1, 1, 0, 0, 0, 1]  # case 44: the prompt has no place in it
    assert trajectory.log_probs == [-0.1, -0.2, 0.0, 0.0, 0.0, -0.3]
    assert (trajectory.num_policy_tokens, trajectory.num_observation_tokens) == (3, 3)


@given(steps)
def test_invariants_1_2_6_for_any_order_of_appending(history: list[tuple[bool, list[int]]]) -> None:
    trajectory = Trajectory("t", "q", [9])
    sampled, previous = 0, trajectory.ids
    for is_policy, ids in history:
        if is_policy:
            trajectory.append_policy(ids, [-1.0] * len(ids))
            sampled += len(ids)
        else:
            trajectory.append_observation(ids)
        assert trajectory.ids[: len(previous)] == previous  # case 56
        previous = trajectory.ids
    trajectory.finish("turn_limit")
    assert len(trajectory.response_ids) == len(trajectory.response_mask) == len(trajectory.log_probs)  # case 53
    assert sum(trajectory.response_mask) == sampled
    assert trajectory.response_mask[-1:] == ([1] if sampled else [])
    assert previous[: len(trajectory.ids)] == trajectory.ids


def test_invariant_6_trailing_observation_is_dropped() -> None:
    trajectory = Trajectory("t", "q", [1])
    trajectory.append_policy([3], [-0.1])
    trajectory.turns.append(Turn("x", "search", 1, "stop", observation_tokens=2))
    trajectory.append_observation([8, 8])
    trajectory.finish("engine_failed")
    assert trajectory.response_ids == [3] and trajectory.turns[0].observation_tokens == 0


def test_case_45_and_70_special_tokens_follow_who_sampled_them() -> None:
    eos = pad = 2
    trajectory = Trajectory("t", "q", [eos, pad])
    trajectory.append_policy([5, eos], [-0.1, -0.2])
    trajectory.append_observation([eos, 6])  # a forced turn end
    trajectory.append_policy([pad], [-0.2])
    trajectory.finish("turn_limit")
    assert trajectory.response_mask == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_case_157_log_prob_that_is_not_finite_is_masked_and_counted(bad: float) -> None:
    trajectory = Trajectory("t", "q", [1])
    trajectory.append_policy([3, 4, 5], [-0.1, bad, -0.3])
    trajectory.finish("answer")
    assert trajectory.response_mask == [1, 0, 1] and trajectory.log_probs == [-0.1, 0.0, -0.3]
    assert trajectory.num_masked == 1 and trajectory.num_observation_tokens == 0
    assert trajectory.response_ids == [3, 4, 5]


def test_cases_71_and_73_empty_response_has_finite_counts_and_is_not_trained_on() -> None:
    trajectory = Trajectory("t", "q", [1])
    trajectory.finish("turn_limit")
    assert trajectory.response_ids == trajectory.response_mask == [] and not trajectory.in_loss
    assert all(value in (0, 1) for value in trajectory.counts().values())


@pytest.mark.parametrize("reason", sorted(END_REASONS))
def test_failures_outside_the_policy_stay_out_of_the_loss(reason: str) -> None:
    trajectory = Trajectory("t", "q", [1])
    trajectory.append_policy([3], [-0.1])
    trajectory.finish(reason)
    assert trajectory.in_loss == (reason not in {"retrieval_failed", "engine_failed", "prompt_too_long"})


def test_misuse_is_refused() -> None:
    trajectory = Trajectory("t", "q", [1])
    with pytest.raises(ValueError, match="2 token ids but 1 log-probs"):
        trajectory.append_policy([1, 2], [-0.1])
    with pytest.raises(ValueError, match="unknown end reason 'done'"):
        trajectory.finish("done")
    trajectory.response_ids.append(5)  # a copy
    assert trajectory.response_ids == []
    trajectory.finish("answer")
    for append in (
        lambda: trajectory.append_policy([1], [0.0]),
        lambda: trajectory.append_observation([1]),
        lambda: trajectory.finish("answer"),
    ):
        with pytest.raises(RuntimeError, match="is finished"):
            append()


def test_record_is_json_with_ids_and_scores_and_contents_on_request() -> None:
    trajectory = Trajectory("t7", "Who?", [1])
    trajectory.append_policy([3], [-0.1])
    turn = Turn("<search> a </search>", "search", 1, "stop", queries=("a",), executed=True, retrieve_s=0.25)
    turn.passages = [[Passage(4, "Dvořák", 0.5)]]
    trajectory.turns.append(turn)
    trajectory.finish("turn_limit")
    record = json.loads(json.dumps(trajectory.to_record()))
    assert record["turns"][0]["passages"] == [[{"id": 4, "score": 0.5}]]
    assert record["turns"][0]["retrieve_s"] == 0.25
    assert record | {"turns": None} == {
        "id": "t7",
        "question": "Who?",
        "turns": None,
        "answer": None,
        "end_reason": "turn_limit",
        "error": None,
        "num_turns": 1,
        "num_searches": 1,
        "num_queries": 1,
        "num_dropped": 0,
        "num_invalid": 0,
        "num_masked": 0,
        "prompt_tokens": 1,
        "policy_tokens": 1,
        "observation_tokens": 0,
    }
    assert trajectory.to_record(with_contents=True)["turns"][0]["passages"][0][0]["contents"] == "Dvořák"

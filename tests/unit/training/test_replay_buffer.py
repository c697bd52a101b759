"""Case 170: whatever order trajectories finish in, a batch is in the order of the data loader."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.training import replay_buffer
from rag_r1.training.replay_buffer import OrderedReplayBuffer

UIDS = [f"uid{i}" for i in (3, 1, 2, 0)]  # names do not sort in the loader's order
KEYS = [f"{uid}_{session}_0" for uid in UIDS for session in range(3)]


@pytest.fixture(scope="module")
def buffer():
    return OrderedReplayBuffer(
        trainer_mode="sync",
        trainer_config=None,
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        refill_fn=None,
    )


@given(finished=st.permutations(KEYS))
def test_batch_order_does_not_depend_on_completion(buffer, finished):
    buffer.prompt_global_steps["train"] = dict.fromkeys(UIDS, 1)
    tags = {key: {"seq_len": i} for i, key in enumerate(finished)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verl.trainer.ppo.v1.replay_buffer.tq", SimpleNamespace(kv_clear=lambda **_: None))
        batch = buffer._materialize_batch("train", UIDS, tags)
    assert batch.keys == KEYS
    assert batch.tags == [tags[key] for key in KEYS]  # tags travel with their keys


def test_it_looks_for_finished_trajectories_often(buffer):
    assert buffer.poll_interval == replay_buffer.POLL_INTERVAL_S < 2.0

"""What the trainer adds to verl's: figures by kind, the limit on failures, one metrics file a run."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rag_r1.training.trainer import SearchAgentTrainer, TooManyFailures, metrics_path, search_metrics


@pytest.fixture
def trainer(tmp_path):
    made = SearchAgentTrainer.__new__(SearchAgentTrainer)
    made.global_steps, made.saved = 5, []
    made._save_checkpoint = lambda: made.saved.append(made.global_steps)
    made.config = OmegaConf.create(
        {
            "rag_r1": {"retriever": {"max_failed_share": 0.25, "url": "http://x/retrieve"}, "trajectories_path": "t"},
            "trainer": {"default_local_dir": str(tmp_path)},
        }
    )
    return made


def test_failures_under_the_limit_go_on(trainer):
    trainer._stop_beyond_limit(Counter(retrieval_failed=2), 8)
    assert trainer.saved == []


def test_beyond_the_limit_the_run_stops_with_a_checkpoint_of_the_last_whole_step(trainer):
    with pytest.raises(TooManyFailures, match=r"step 5: 3 of 8 .*2 retrieval_failed, 1 engine_failed.*global_step_4"):
        trainer._stop_beyond_limit(Counter(retrieval_failed=2, engine_failed=1), 8)
    assert trainer.saved == [4]


def test_metrics_by_kind():
    infos = [
        ("bridge", {"em": 1.0, "rounds": 2.0}),
        ("bridge", {"em": 0.0, "rounds": 1.0}),
        ("", {"em": 1.0, "rounds": 0.0}),
    ]
    metrics = search_metrics(infos)
    assert metrics["search/em"] == pytest.approx(2 / 3)
    assert metrics["search/em/bridge"] == 0.5
    assert metrics["search/rounds/bridge"] == 1.5


def test_a_resumed_run_keeps_the_metrics_of_the_first(tmp_path):
    first = metrics_path(tmp_path)
    first.write_text(json.dumps({"step": 1}))
    assert metrics_path(tmp_path) != first
    assert metrics_path(tmp_path).name == "metrics-2.jsonl"


def test_reward_infos_skip_padding_rows(monkeypatch):
    from rag_r1.training import trainer as module

    asked = {}

    def kv_batch_get(keys, partition_id, select_fields):
        asked["keys"] = keys
        return {"extra_fields": SimpleNamespace(tolist=lambda: [{"kind": "a"}])}

    monkeypatch.setattr(module.tq, "kv_batch_get", kv_batch_get)
    batch = SimpleNamespace(keys=["k0", "pad"], tags=[{}, {"is_padding": True}], partition_id="train")
    assert module._extra_fields(batch) == [{"kind": "a"}]
    assert asked["keys"] == ["k0"]

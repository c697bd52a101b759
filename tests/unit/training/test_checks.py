"""What is refused before Ray starts, one clear line each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from rag_r1.data import QuestionRow, write_parquet
from rag_r1.retrieval import Passage, create_app
from rag_r1.training import checks

CONFIGS = str(Path(__file__).resolve().parents[3] / "configs")


class Anything:
    """Finds one passage for every query."""

    rows, encoder_name, stage_s = 1, "none", {}

    def __init__(self, index_id="one"):
        self.index_id = index_id

    def find(self, queries, topk):
        return [[Passage(0, "Ada   Ada was a countess.", 1.0)] for _ in queries]


@pytest.fixture
def config(tmp_path, server):
    """A CPU configuration whose data and retriever are there."""
    rows = [QuestionRow(id=str(i), question=f"q{i}?", golden_answers=["a"], data_source="toy") for i in range(64)]
    for split in ("train", "heldout"):
        write_parquet(rows, tmp_path / f"{split}.parquet", split)
    with server(create_app(Anything())) as url, initialize_config_dir(CONFIGS, version_base=None):
        yield compose("cpu_multi_query", overrides=[f"toy_dir={tmp_path}", f"rag_r1.retriever.url={url}/retrieve"])


def problems(config):
    return "\n".join(checks.find_problems(config))


def test_a_good_configuration_passes(config):
    assert problems(config) == ""


def test_retriever_down_names_the_command_that_starts_it(config):
    config.rag_r1.retriever.url = "http://127.0.0.1:9/retrieve"
    assert "python start_retrieval.py" in problems(config)


def test_every_address_is_searched_and_serves_the_same_index(config, server):
    good = config.rag_r1.retriever.url
    original = create_app(Anything())  # like the servers of RAG-R1 and Search-R1: no /health, so nothing to differ
    original.router.routes = [route for route in original.router.routes if getattr(route, "path", "") != "/health"]
    with (
        server(create_app(Anything("other"))) as other,
        server(create_app(Anything(), token="x")) as closed,
        server(original) as silent,
    ):
        config.rag_r1.retriever.url = [good, f"{other}/retrieve", "http://127.0.0.1:9", closed, silent]
        found = problems(config).splitlines()
    assert (
        len(found) == 3
        and "None" not in found[2]
        and "127.0.0.1:9" in found[0]
        and "RAG_R1_RETRIEVAL_TOKEN" in found[1]
    )
    assert "different indexes" in found[2] and "other" in found[2] and "one" in found[2]
    config.rag_r1.retriever.url = "0.0.0.0:8000"
    assert "must be of the form http://host:port" in problems(config)


def test_a_retriever_that_cannot_search_is_told_though_it_says_it_is_ready(config, server):
    class Broken(Anything):
        def find(self, queries, topk):
            raise RuntimeError("disk on fire")

    with server(create_app(Broken())) as url:
        config.rag_r1.retriever.url = url
        assert "disk on fire" in problems(config)


def test_case_159_missing_package(config, monkeypatch):
    monkeypatch.setitem(checks.REQUIRED_PACKAGES, "no_such_module", "no-such-package")
    assert "package no_such_module is missing: pip install no-such-package" in problems(config)


def test_gpu_configuration_without_an_accelerator(config):
    config.actor_rollout_ref.rollout.name = "vllm"
    found = problems(config)
    assert "no accelerator was found" in found and "cpu_multi_query" in found


@pytest.mark.parametrize(
    "key, value, message",
    [
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            24,
            "does not divide by actor_rollout_ref.actor.ppo_mini_batch",
        ),
        ("critic.ppo_micro_batch_size_per_gpu", 7, "not divide by critic.ppo_micro_batch_size_per_gpu=7"),
        ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", 9, "not divisible by actor_rollout_ref.ref"),
        ("trainer.n_gpus_per_node", 3, "does not divide by the 3 workers"),
        ("data.train_batch_size", 128, "64 rows, fewer than data.train_batch_size=128"),
        ("data.max_response_length", 10, "data.max_response_length=10 is less than"),
        ("rag_r1.protocol", "tripple", "tripple"),
    ],
)
def test_wrong_values_are_named(config, key, value, message):
    from omegaconf import OmegaConf

    OmegaConf.update(config, key, value)
    assert message in problems(config)


def test_wrong_schema_names_file_and_column(config, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"question": ["q"] * 64}), tmp_path / "train.parquet")
    found = problems(config)
    assert "train.parquet" in found and "column is missing" in found


def test_no_file_names_the_script_that_makes_it(config):
    config.data.train_files = "nowhere.parquet"
    assert "make_rl_data.py" in problems(config)

"""PPO through Ray and verl, both modes, by the shell scripts: what CI runs is what a user runs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from .conftest import ENVIRONMENT, REPO, Server, Toy, stop_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SMALL = [
    # a policy that guesses earns nothing, and from nothing alone no weight would move
    "actor_rollout_ref.actor.entropy_coeff=0.01",
    "trainer.critic_warmup=0",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "critic.ppo_mini_batch_size=8",
    "critic.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
]


def command(mode: str, toy: Toy, server: Server, out: Path, *overrides: str) -> list[str]:
    script = {"single": "train_ppo.sh", "multi": "train_ppo_mq.sh"}[mode]
    return [
        *("bash", script, "--config-name", f"cpu_{mode}_query", f"toy_dir={toy.folder}"),
        *(f"actor_rollout_ref.model.path={toy.policy}", f"rag_r1.retriever.url={server.url}"),
        *(f"trainer.default_local_dir={out}", *SMALL, *overrides),
    ]


def start(arguments: list[str], log: Path) -> subprocess.Popen:
    with log.open("w") as file:
        return subprocess.Popen(
            arguments, cwd=REPO, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_step(process: subprocess.Popen, out: Path, log: Path, step: int, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not any(row["step"] >= step for row in read_jsonl(out / "metrics.jsonl")):
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.5)


@pytest.mark.parametrize("mode", ["multi", "single"])
def test_two_steps(mode: str, toy: Toy, server: Server, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(command(mode, toy, server, out, "trainer.total_training_steps=2", "trainer.save_freq=2"), log)
    assert process.wait(timeout=400) == 0, log.read_text()[-4000:]

    metrics = {row["step"]: row["data"] for row in read_jsonl(out / "metrics.jsonl")}
    trajectories = read_jsonl(out / "trajectories.jsonl")
    assert sorted(metrics) == [1, 2]
    assert len(trajectories) == 32
    for step, values in metrics.items():
        assert all(math.isfinite(value) for value in values.values() if isinstance(value, float))
        # the engine has the trainer's weights, ids and temperature: before the first update and after it
        assert values["search/log_prob_gap_max"] < 1e-3
        # every token in the loss was sampled by the policy, and every sampled token is in the loss
        mine = [row for row in trajectories if row["step"] == step]
        assert values["search/loss_tokens"] == sum(row["policy_tokens"] for row in mine)
        assert values["search/failed"] == 0.0
        assert values["actor/grad_norm"] > 0
    assert sum(row["observation_tokens"] for row in trajectories) > 0
    searches = sum(row["num_searches"] for row in trajectories)
    queries = sum(row["num_queries"] for row in trajectories)
    assert searches > 0
    assert queries == searches if mode == "single" else queries >= searches

    before = load_file(toy.policy / "model.safetensors")
    after = load_file(out / "global_step_2/actor/huggingface/model.safetensors")
    changed = [name for name in before if not before[name].equal(after[name])]
    assert len(changed) == len(before)


def test_retriever_down_in_the_middle_stops_with_a_checkpoint(toy: Toy, server: Server, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    quick = ("rag_r1.retriever.timeout_s=2", "rag_r1.retriever.max_retries=1", "rag_r1.retriever.max_failed_share=0.1")
    process = start(command("multi", toy, server, out, "trainer.total_training_steps=200", *quick), log)
    wait_for_step(process, out, log, step=1)
    stop_server(server)
    assert process.wait(timeout=300) != 0
    text = log.read_text()
    assert "trajectories failed outside the policy" in text and "retrieval_failed" in text
    (saved,) = [path.name for path in out.glob("global_step_*")]
    last_whole_step = max(row["step"] for row in read_jsonl(out / "metrics.jsonl"))
    assert saved == f"global_step_{last_whole_step}"
    assert any(row["end_reason"] == "retrieval_failed" for row in read_jsonl(out / "trajectories.jsonl"))


def test_ctrl_c_leaves_no_process_behind(toy: Toy, server: Server, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(command("single", toy, server, out, "trainer.total_training_steps=200"), log)
    wait_for_step(process, out, log, step=1)
    started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(started) > 5  # Ray, the worker, the rollout server ...
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    process.wait(timeout=120)
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

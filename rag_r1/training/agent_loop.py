"""verl agent loop `rag_r1`: one question through the generation manager, and back as verl's `AgentLoopOutput`.

Everything that decides what is written, read and masked lives in `rag_r1.rollout`, which evaluation uses too. This file only
translates: verl's server becomes an `Engine`, a `Trajectory` becomes an output with its reward and metrics.

A trajectory that must not be learned from (`in_loss` False) goes back with a mask of zeros, so batch shapes stay whole and
every loss, advantage and whitening statistic of verl passes over it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from rag_r1.data import golden_list
from rag_r1.protocols import Protocol, get_protocol
from rag_r1.retrieval.client import RetrievalClient
from rag_r1.rollout import Generation, GenerationManager, SamplingParams, Trajectory, TrajectoryRecorder
from rag_r1.rollout.metrics import trajectory_metrics
from rag_r1.training.settings import Settings


class VerlEngine:
    """verl's LLM server client as an `Engine`, bound to one trajectory so that its turns meet the same server's cache."""

    def __init__(self, server: Any):
        self._server = server
        self._request_id = uuid4().hex
        self.weights_steps: list[int] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        output = await self._server.generate(
            request_id=self._request_id,
            prompt_ids=list(prompt_ids),
            sampling_params={
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_tokens,
                "stop": list(sampling.stop),
                "include_stop_str_in_output": True,
                "logprobs": True,
                **({} if sampling.seed is None else {"seed": sampling.seed}),
            },
        )
        self.weights_steps.append(output.extra_fields.get("global_steps"))
        # verl reports vLLM's "stop" and "length" alike as "completed"; only the number of ids tells them apart
        cut = len(output.token_ids) >= sampling.max_tokens
        reason = "aborted" if output.stop_reason in ("aborted", "abort") else "length" if cut else "stop"
        return Generation(output.token_ids, output.log_probs or [], reason)


class Shared:
    """What all trajectories of one agent loop worker share: settings, protocol, retrieval client, recorder."""

    def __init__(self, config: Any):
        self.settings = Settings.from_config(OmegaConf.to_container(config.rag_r1, resolve=True))
        rollout = config.actor_rollout_ref.rollout
        # vLLM samples a batch slower where every request has a generator of its own
        self.seed: int | None = rollout.seed if rollout.name == "transformers" else None

    @cached_property
    def protocol(self) -> Protocol:
        return get_protocol(self.settings.protocol, prompt_file=self.settings.prompt_file)

    @cached_property
    def retriever(self) -> RetrievalClient:
        r = self.settings.retriever
        return RetrievalClient(r.url, timeout_s=r.timeout_s, max_retries=r.max_retries)

    @cached_property
    def recorder(self) -> TrajectoryRecorder | None:
        path = self.settings.trajectories_path
        return TrajectoryRecorder(path) if path else None


class SearchAgentLoop(AgentLoopBase):
    """Made by verl once a trajectory; what is expensive is made once a process in `_shared`."""

    _shared: Shared | None = None

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **_: Any):
        # The base class builds a chat renderer for every trajectory, which a raw-text protocol never uses.
        if SearchAgentLoop._shared is None:
            SearchAgentLoop._shared = Shared(trainer_config.config)
        self.shared = SearchAgentLoop._shared
        self.engine = VerlEngine(server_manager)
        self.tokenizer = tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        settings = self.shared.settings
        manager = GenerationManager(
            self.engine,
            self.shared.retriever,
            self.tokenizer,
            self.shared.protocol,
            settings.budget,
            topk=settings.retriever.topk,
        )
        question = row["raw_prompt"][-1]["content"]
        extra_info = row.get("extra_info") or {}
        start = time.monotonic()
        trajectory = await manager.run(
            question,
            SamplingParams(
                max_tokens=settings.budget.max_turn_tokens,
                temperature=sampling_params["temperature"],
                top_p=sampling_params["top_p"],
                top_k=sampling_params["top_k"],
                seed=self._seed(row),
            ),
            trajectory_id=str(extra_info.get("id", "")),
        )
        wall_s = time.monotonic() - start
        metrics = trajectory_metrics(trajectory, golden_list(row["reward_model"]["ground_truth"]["target"]))
        metrics["wall_s"] = wall_s
        self._record(trajectory, metrics, row, sampling_params)
        return self._output(trajectory, metrics, str(row.get("kind") or row.get("data_source") or ""))

    def _seed(self, row: dict[str, Any]) -> int | None:
        """One seed a (run, step, question, rollout), so a run repeats whatever order its requests arrive in."""
        if self.shared.seed is None:
            return None
        place = (
            self.shared.seed,
            row.get("global_steps"),
            (row.get("extra_info") or {}).get("id"),
            row.get("session_id"),
        )
        return zlib.crc32(repr(place).encode())

    def _record(
        self, trajectory: Trajectory, metrics: dict[str, float], row: dict[str, Any], sampling_params: dict[str, Any]
    ) -> None:
        if self.shared.recorder is None:
            return
        self.shared.recorder.write(
            trajectory,
            metrics=metrics,
            golden_answers=golden_list(row["reward_model"]["ground_truth"]["target"]),
            kind=row.get("kind", ""),
            step=int(row.get("global_steps", -1)),
            temperature=sampling_params["temperature"],
        )

    def _output(self, trajectory: Trajectory, metrics: dict[str, float], kind: str) -> AgentLoopOutput:
        prompt_ids, response_ids = list(trajectory.prompt_ids), list(trajectory.response_ids)
        mask, log_probs = list(trajectory.response_mask), list(trajectory.log_probs)
        if not response_ids:  # verl needs one position; a forced token is never trained
            response_ids, mask, log_probs = [self.tokenizer.eos_token_id], [0], [0.0]
        if not trajectory.in_loss:
            mask = [0] * len(mask)
        prompt_ids = prompt_ids[: self.shared.settings.budget.max_prompt_tokens]
        steps = [step for step in self.engine.weights_steps if step is not None] or [0]
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response_mask=mask,
            response_logprobs=log_probs,
            reward_score=metrics["em"],
            num_turns=len(trajectory.turns),
            metrics=AgentLoopMetrics(
                generate_sequences=sum(turn.generate_s for turn in trajectory.turns),
                tool_calls=sum(turn.retrieve_s for turn in trajectory.turns),
            ),
            extra_fields={
                "reward_extra_info": {**metrics, "acc": metrics["em"]},
                "kind": kind,
                "end_reason": trajectory.end_reason,
                "min_global_steps": min(steps),
                "max_global_steps": max(steps),
            },
        )

"""verl rollout `transformers`: token ids in, token ids and log-probs out, without vLLM.

Three parts, as verl wants them:

- `TransformersServer`, a Ray actor that holds the policy and the engine of `rag_r1.rollout` (continuous batching);
- `TransformersReplica`, which starts one server beside each FSDP worker;
- `TransformersServerAdapter`, which lives in the worker and hands it new weights after every update.

Weights travel through Ray's object store (shared memory): one copy on the way. Every reply carries the step whose weights
made it, and the server refuses to generate before it was given weights once (a policy that nobody synced is the fault behind
many a silent divergence).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rag_r1.rollout import SamplingParams
from rag_r1.rollout.transformers_engine import TransformersEngine


def _server_name(replica_rank: int) -> str:
    return f"transformers_server_{replica_rank}"


class TransformersServer:
    """The rollout engine of one replica, in a process of its own."""

    def __init__(self, config: RolloutConfig, model_config: Any, replica_rank: int):
        model_config = omega_conf_to_dataclass(model_config)
        model = AutoModelForCausalLM.from_pretrained(
            model_config.local_path,
            config=model_config.hf_config,
            dtype=getattr(torch, config.dtype),
            trust_remote_code=model_config.trust_remote_code,
        ).eval()
        self._engine = TransformersEngine(
            model, model_config.tokenizer, max_batch=config.max_num_seqs, seed=config.seed + replica_rank
        )
        self._weights_step: int | None = None

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """One request. `sampling_params` are vLLM's names; ids of the stop string and of eos are part of the reply."""
        if self._weights_step is None:
            raise RuntimeError("the rollout server was asked to generate before its first weight update")
        generation = await self._engine.generate(
            prompt_ids,
            SamplingParams(
                max_tokens=sampling_params["max_tokens"],
                temperature=sampling_params["temperature"],
                top_p=sampling_params["top_p"],
                top_k=sampling_params["top_k"],
                stop=tuple(sampling_params.get("stop", ())),
                seed=sampling_params.get("seed"),
            ),
        )
        return TokenOutput(
            token_ids=generation.token_ids,
            log_probs=generation.log_probs,
            stop_reason="aborted" if generation.stop_reason == "aborted" else "completed",
            extra_fields={"global_steps": self._weights_step},
        )

    async def update_weights(self, state: dict[str, torch.Tensor], last: bool, global_steps: int | None) -> None:
        """Copy a bucket of named tensors into the model; the last bucket moves the step forward."""
        await asyncio.to_thread(self._engine.update_weights, state.items())
        if last:
            self._weights_step = global_steps if global_steps is not None else (self._weights_step or 0) + 1

    async def weights_step(self) -> int | None:
        return self._weights_step

    # The engine holds no memory worth freeing between steps, and a synchronous run has no request in flight when these come.
    async def wake_up(self, **_: Any) -> None: ...

    async def sleep(self, **_: Any) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def resume_generation(self) -> None: ...

    async def abort_all_requests(self, reject_request: bool = False) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...


class TransformersReplica(RolloutReplica):
    """One server on the node of the worker whose weights it gets."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                "actor_rollout_ref.rollout.tensor_model_parallel_size and data_parallel_size must be 1 for "
                f"rollout.name=transformers, got a world of {self.world_size}; use rollout.name=vllm to shard a policy"
            )
        node_id = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        server = (
            ray.remote(TransformersServer)
            .options(
                name=_server_name(self.replica_rank),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        await server.weights_step.remote()  # waits until the model is loaded, so a failure shows here
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank)


class TransformersServerAdapter(BaseRollout):
    """The worker's side: sends the actor's weights to its server, `update_weights_bucket_megabytes` at a time."""

    def __init__(self, config: RolloutConfig, model_config: HFModelConfig, device_mesh: Any, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self._replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **_: Any,
    ) -> None:
        if wire_format != "named_tensors":
            raise ValueError(f"rollout.name=transformers takes wire_format='named_tensors', got {wire_format!r}")
        server = ray.get_actor(_server_name(self._replica_rank))
        bucket_bytes = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: dict[str, torch.Tensor] = {}
        size = 0
        async for name, tensor in ensure_async_iterator(weights):
            bucket[name] = tensor.detach().cpu()
            size += tensor.nbytes
            if size >= bucket_bytes:
                await server.update_weights.remote(bucket, False, None)
                bucket, size = {}, 0
        await server.update_weights.remote(bucket, True, global_steps)

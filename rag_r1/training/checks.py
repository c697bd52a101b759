"""Before Ray starts: everything that would otherwise fail ten minutes later, one clear line each.

Each check looks at the resolved configuration (and the world it names) and yields messages; an empty run of all of them means
that the training may start. Messages name the key and the value, and say what to do.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag_r1.data import check_parquet

# import name -> what to install; verl's trainer imports the first two without declaring them
REQUIRED_PACKAGES = {"transfer_queue": "TransferQueue", "cachetools": "cachetools"}


def find_problems(config: Any) -> list[str]:
    """Run every check; `config` is the resolved Hydra configuration of `main_ppo`."""
    checks = (
        check_packages,
        check_plugin,
        check_settings,
        check_devices,
        check_batch_sizes,
        check_data,
        check_retriever,
    )
    return [problem for check in checks for problem in check(config)]


def check_packages(config: Any) -> Iterator[str]:
    required = dict(REQUIRED_PACKAGES)
    if config.actor_rollout_ref.rollout.name == "vllm":
        required["vllm"] = "'rag-r1[gpu]'"
    for module, package in required.items():
        if importlib.util.find_spec(module) is None:
            yield f"package {module} is missing: pip install {package}"


def check_plugin(config: Any) -> Iterator[str]:
    from rag_r1.training import plugin

    if plugin.LOAD_ERROR is not None:
        yield f"the verl plug-in failed to load: {plugin.LOAD_ERROR}"


def check_settings(config: Any) -> Iterator[str]:
    from omegaconf import OmegaConf

    from rag_r1.protocols import get_protocol
    from rag_r1.training.settings import Settings

    try:
        settings = Settings.from_config(OmegaConf.to_container(config.rag_r1, resolve=True))
        get_protocol(settings.protocol, prompt_file=settings.prompt_file)
    except (ValueError, OSError, TypeError) as error:
        yield str(error)
        return
    budget = settings.budget
    for key, tokens in (
        ("data.max_prompt_length", budget.max_prompt_tokens),
        ("data.max_response_length", budget.max_response_tokens),
    ):
        value = _select(config, key)
        if value < tokens:
            yield f"{key}={value} is less than the rag_r1.budget of {tokens} tokens: raise it, or lower the budget"


def check_devices(config: Any) -> Iterator[str]:
    from verl.plugin.platform import get_platform

    platform, rollout = get_platform(), config.actor_rollout_ref.rollout.name
    if platform.device_name == "cpu":
        if rollout == "vllm":
            yield (
                "this configuration is for GPUs (actor_rollout_ref.rollout.name=vllm) and no accelerator was found; on a CPU use "
                "--config-name cpu_multi_query or cpu_single_query"
            )
        return
    have, want = platform.device_count(), config.trainer.n_gpus_per_node
    if have < want:
        yield (
            f"trainer.n_gpus_per_node={want}, but this machine shows {have} accelerators: lower it, or check "
            f"{platform.visible_devices_envvar()}"
        )


def check_batch_sizes(config: Any) -> Iterator[str]:
    rollout_n = config.actor_rollout_ref.rollout.n
    workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
    batch = config.data.train_batch_size
    if batch * rollout_n % workers:
        yield f"data.train_batch_size={batch} x rollout.n={rollout_n} does not divide by the {workers} workers"
    for role in ("actor_rollout_ref.actor", "critic"):
        mini = _select(config, f"{role}.ppo_mini_batch_size")
        if batch % mini:
            yield f"data.train_batch_size={batch} does not divide by {role}.ppo_mini_batch_size={mini}"
        if mini * rollout_n % workers:
            yield f"{role}.ppo_mini_batch_size={mini} x rollout.n={rollout_n} does not divide by the {workers} workers"
            continue
        micro = _select(config, f"{role}.ppo_micro_batch_size_per_gpu")
        if micro and not _select(config, f"{role}.use_dynamic_bsz") and mini * rollout_n // workers % micro:
            yield (
                f"{role}.ppo_mini_batch_size={mini} x rollout.n={rollout_n} is {mini * rollout_n // workers} rows a worker, which does "
                f"not divide by {role}.ppo_micro_batch_size_per_gpu={micro}"
            )

    for role in ("rollout", "ref"):
        key = f"actor_rollout_ref.{role}.log_prob_micro_batch_size_per_gpu"
        micro, rows = _select(config, key), batch * rollout_n // workers
        if micro and not _select(config, f"actor_rollout_ref.{role}.log_prob_use_dynamic_bsz") and rows % micro:
            yield f"data.train_batch_size={batch} x rollout.n={rollout_n} is {rows} rows a worker, not divisible by {key}={micro}"


def check_data(config: Any) -> Iterator[str]:
    for key in ("data.train_files", "data.val_files"):
        value = _select(config, key)
        for file in [value] if isinstance(value, str) else list(value):
            path = Path(os.path.expanduser(file))
            if not path.exists():
                yield f"{key}: {path} does not exist; make it with scripts/data_process/make_rl_data.py"
                continue
            try:
                rows = check_parquet(path)
            except ValueError as error:
                yield f"{key}: {error}"
                continue
            if key == "data.train_files" and rows < config.data.train_batch_size:
                yield f"{key}: {path} has {rows} rows, fewer than data.train_batch_size={config.data.train_batch_size}"


def check_retriever(config: Any) -> Iterator[str]:
    """One real search at each address, and the same index behind all of them."""
    from rag_r1.retrieval.client import RetrievalClient
    from rag_r1.retrieval.types import RetrievalError

    url = config.rag_r1.retriever.url
    cards: dict[str, dict[str, Any]] = {}

    async def ask(address: str) -> None:
        async with RetrievalClient(address, timeout_s=10, max_retries=0) as client:
            await client.search(["Is anybody there?"], 1)
            cards[address] = await client.health()

    try:
        addresses = RetrievalClient(url if isinstance(url, str) else list(url)).addresses
    except ValueError as error:
        yield f"rag_r1.retriever.url: {error}"
        return
    for address in addresses:
        try:
            asyncio.run(ask(address))
        except RetrievalError as error:
            yield f"rag_r1.retriever.url: {error}"
    served = {address: card["index_id"] for address, card in cards.items() if "index_id" in card}
    if len(set(served.values())) > 1:
        told = ", ".join(f"{address}: {index_id}" for address, index_id in served.items())
        yield f"rag_r1.retriever.url: the servers serve different indexes ({told}); start all of them on one"


def _select(config: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.select(config, key)

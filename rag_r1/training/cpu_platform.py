"""verl platform `cpu`: PPO with FSDP2 over gloo on a machine without an accelerator.

verl asks its platform for everything that touches a device. A CPU answers: tensors live on `torch.device("cpu")`, the
collective backend is gloo, weights travel through shared memory, memory figures are those of the process, and all that
manages an accelerator's memory does nothing. Ray's logical resource "GPU" stands for one worker (`main_ppo` starts Ray with
as many as the configuration asks for), so verl's placement code is used unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _process_memory_bytes(*_: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _memory_info_bytes(*_: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def _nothing(*_: Any, **__: Any) -> None:
    return None


# The part of `torch.cuda` that verl calls, for a CPU; `torch.cpu` itself lacks most of it.
CPU_DEVICE_MODULE = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: torch.device("cpu"),
    set_device=_nothing,
    synchronize=_nothing,
    empty_cache=_nothing,
    ipc_collect=_nothing,
    reset_peak_memory_stats=_nothing,
    memory_allocated=_process_memory_bytes,
    max_memory_allocated=_process_memory_bytes,
    memory_reserved=_process_memory_bytes,
    max_memory_reserved=_process_memory_bytes,
    mem_get_info=_memory_info_bytes,
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_device_name=lambda *_: "cpu",
    get_device_properties=lambda *_: SimpleNamespace(name="cpu", total_memory=psutil.virtual_memory().total),
)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Chosen by itself where no other platform answers; `VERL_PLATFORM=cpu` forces it."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CPU_DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")  # verl hands this to `tensor.to()`; an index would mean an accelerator

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None

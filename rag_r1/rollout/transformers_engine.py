"""Engine on a plain `transformers` model, with continuous batching: for CPUs, small models and one GPU.

`generate` (from any thread, any event loop) puts a request on a queue and awaits its future; one worker thread runs the
decode loop of `BatchDecoder`. New requests join the running batch at the next step, finished ones leave it.

Invariants: see `rag_r1.rollout.engine`. Also: weights never change while a request is waiting or running; after a
change nothing computed with the old weights is used. An error in the loop fails every request in flight, and the engine
serves on with an empty batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from rag_r1.rollout.batch_decoder import BatchDecoder, Request
from rag_r1.rollout.engine import Generation, SamplingParams
from rag_r1.rollout.tokenizer import Tokenizer


class TransformersEngine:
    """Serves `model` (a causal LM of `transformers` whose layers all use full attention).

    Args:
        model: put into evaluation mode, and moved to `device` where one is given.
        max_batch: sequences that run at once; more wait.
        max_cached_tokens: tokens whose keys and values are kept after a generation for the trajectory's next turn
            (0: none). One token takes 2 * layers * key-value heads * head_dim numbers.
        seed: of the generator for requests without a seed of their own.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        max_batch: int = 64,
        device: str | torch.device | None = None,
        *,
        max_cached_tokens: int = 32_768,
        seed: int = 0,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch={max_batch}: at least one sequence must run")
        _check_model(model)
        self.model = (model if device is None else model.to(device)).eval()
        self.max_batch = max_batch
        self.version = 0
        """Counts `update_weights`."""
        config = model.config.get_text_config()
        self._vocab_size: int = config.vocab_size
        self._max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self._decoder = BatchDecoder(
            self.model,
            tokenizer,
            max_batch=max_batch,
            max_cached_tokens=max_cached_tokens,
            eos_ids=_eos_ids(model, tokenizer),
            seed=seed,
        )
        self._wake = threading.Condition()  # guards everything below
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._closed = False
        self._half_updated = False
        self._thread = threading.Thread(target=self._serve, name="transformers-engine", daemon=True)
        self._thread.start()

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Continue `prompt_ids`.

        ValueError: empty prompt, an id outside the vocabulary, or more positions than the model has.
        RuntimeError: the engine is closed, its weights are incomplete, or the decode loop failed.
        """
        request = Request(list(prompt_ids), sampling)
        self._check(request)
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            if self._half_updated:
                raise RuntimeError("the last weight update failed half-way: update the weights before generating")
            self._waiting.append(request)
            self._wake.notify()
        return await asyncio.wrap_future(request.future)

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]]) -> int:
        """Copy new weights into the model (names of its parameters and buffers) and return the new `version`.

        RuntimeError while requests wait or run. KeyError or ValueError for a name or shape the model does not have;
        the engine then refuses to generate until a whole update has succeeded.
        """
        with self._wake:
            if self._waiting or self._running:
                count = len(self._waiting) + len(self._running)
                raise RuntimeError(f"{count} requests are in flight: await them before updating the weights")
            self._decoder.reset()
            self._half_updated = True
            targets = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
            with torch.no_grad():
                for name, tensor in named_tensors:
                    if name not in targets:
                        raise KeyError(
                            f"the model has no parameter or buffer {name!r}; it has e.g. {next(iter(targets))!r}"
                        )
                    if targets[name].shape != tensor.shape:
                        raise ValueError(
                            f"{name}: shape {tuple(tensor.shape)}, the model's {tuple(targets[name].shape)}"
                        )
                    targets[name].copy_(tensor)
            self._half_updated = False
            self.version += 1
            return self.version

    def counters(self) -> dict[str, int]:
        """Tokens since the start: prefill_tokens, reused_tokens (prefix cache), decode_tokens; and steps."""
        return dict(self._decoder.counters)

    def close(self) -> None:
        """Stop the worker thread; requests in flight fail with RuntimeError. May be called twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- worker thread -----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            joining = self._next_requests()
            if joining is None:
                self._fail_all(RuntimeError("the engine was closed"))
                return
            try:
                finished = self._decoder.step(joining)
            except Exception as error:
                self._decoder.reset()
                self._fail_all(error)
                continue
            with self._wake:  # before the results: whoever awaits one may update the weights at once
                self._running = self._decoder.requests()
            for request, generation in finished:
                if request.future.set_running_or_notify_cancel():
                    request.future.set_result(generation)

    def _next_requests(self) -> list[Request] | None:
        """Waiting requests that fit in the batch; blocks while there is nothing to do. None when closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._waiting or self._decoder.num_rows)
            if self._closed:
                return None
            joining: list[Request] = []
            while self._waiting and self._decoder.num_rows + len(joining) < self.max_batch:
                request = self._waiting.popleft()
                if not request.future.cancelled():
                    joining.append(request)
                    self._running.append(request)
            return joining

    def _fail_all(self, error: Exception) -> None:
        with self._wake:
            requests = [*self._running, *self._waiting]
            self._running = []
            self._waiting.clear()
        for request in requests:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(RuntimeError(f"the decode loop failed: {error!r}"))

    def _check(self, request: Request) -> None:
        """One bad request must not fail the batch that it would join."""
        ids = request.prompt_ids
        if not ids:
            raise ValueError("the prompt is empty")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise ValueError(f"prompt ids lie in {min(ids)}..{max(ids)}, the vocabulary in 0..{self._vocab_size - 1}")
        needed = len(ids) + request.sampling.max_tokens
        if self._max_positions is not None and needed > self._max_positions:
            raise ValueError(
                f"{len(ids)} prompt + {request.sampling.max_tokens} new tokens exceed the model's "
                f"{self._max_positions} positions (max_position_embeddings): lower the token budget"
            )


def _check_model(model: Any) -> None:
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None) is not None
    if kinds != {"full_attention"} or sliding:
        raise ValueError(f"TransformersEngine needs full attention in every layer, the model has {sorted(kinds)}")
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(f"attention {config._attn_implementation!r}: load the model with attn_implementation='sdpa'")


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = list(configured) if isinstance(configured, (list, tuple)) else [configured]
    return frozenset(i for i in [*ids, getattr(tokenizer, "eos_token_id", None)] if i is not None)

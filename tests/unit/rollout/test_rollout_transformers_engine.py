"""TransformersEngine and its parts against plain forward passes of a tiny random Qwen2."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
import torch
from rollout_fakes import MergeTokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from rag_r1.rollout import Generation, SamplingParams
from rag_r1.rollout.batch_decoder import BatchDecoder, Request
from rag_r1.rollout.transformers_engine import TransformersEngine

TOKENIZER = MergeTokenizer()
VOCABULARY = TOKENIZER.vocab_size
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


def tiny_model(seed: int = 0, **changes: object) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.3,  # logits that differ clearly
        "eos_token_id": None,
        "bos_token_id": None,
    }
    return Qwen2ForCausalLM(Qwen2Config(**(config | changes))).eval()


MODEL = tiny_model()


@torch.no_grad()
def full_forward(
    model: Qwen2ForCausalLM, prompt: list[int], generated: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """(n, V) log-probs of each generated position, from one pass over everything."""
    logits = model(torch.tensor([prompt + generated])).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]


def assert_matches_full_forward(
    prompt: list[int], result: Generation, *, temperature: float = 1.0, greedy: bool = False, model=MODEL
) -> None:
    expected = full_forward(model, prompt, result.token_ids, temperature)
    assert len(result.log_probs) == len(result.token_ids)
    own = expected[range(len(result.token_ids)), result.token_ids]
    torch.testing.assert_close(torch.tensor(result.log_probs), own, atol=1e-4, rtol=0)
    if greedy:
        assert result.token_ids == expected.argmax(-1).tolist()


def prompts(count: int, low: int = 1, high: int = 90, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY - 1) for _ in range(rng.randint(low, high))] for _ in range(count)]


def decoder(model: Qwen2ForCausalLM = MODEL, **changes: object) -> BatchDecoder:
    settings = {"max_batch": 64, "max_cached_tokens": 0, "eos_ids": frozenset(), "seed": 0}
    return BatchDecoder(model, TOKENIZER, **(settings | changes))


def drain(running: BatchDecoder, requests: list[Request], results: dict[int, Generation], every: int = 1) -> None:
    """Let one request join every `every` steps, to the end."""
    waiting, step = list(requests), 0
    while waiting or running.num_rows:
        joining = [waiting.pop(0)] if waiting and step % every == 0 else []
        results.update((id(r), g) for r, g in running.step(joining))
        step += 1


def generate(engine: TransformersEngine, requests: list[tuple[list[int], SamplingParams]]) -> list[Generation]:
    async def everything() -> list[Generation]:
        return list(await asyncio.gather(*(engine.generate(p, s) for p, s in requests)))

    return asyncio.run(everything())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_batched_equals_one_by_one_equals_full_forward(attention: str) -> None:
    model = tiny_model(attn_implementation=attention)
    with TransformersEngine(model, TOKENIZER, max_batch=5) as engine:
        together = generate(engine, [(p, GREEDY) for p in prompts(12)])
        alone = [generate(engine, [(p, GREEDY)])[0] for p in prompts(12)]
    for prompt, one, batched in zip(prompts(12), alone, together, strict=True):
        assert one.token_ids == batched.token_ids
        assert one.stop_reason == batched.stop_reason == "length" and len(one.token_ids) == 12
        assert_matches_full_forward(prompt, batched, greedy=True, model=model)


@pytest.mark.parametrize("cached", [0, 10_000])
def test_requests_of_different_length_join_and_leave_mid_flight(cached: int) -> None:
    lengths = random.Random(1)
    requests = [Request(p, SamplingParams(max_tokens=lengths.randint(1, 40), temperature=0.0)) for p in prompts(25)]
    results: dict[int, Generation] = {}
    drain(decoder(max_cached_tokens=cached), requests, results, every=3)
    for request in requests:
        assert_matches_full_forward(request.prompt_ids, results[id(request)], greedy=True)
        assert len(results[id(request)].token_ids) == request.sampling.max_tokens


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_case_107_log_probs_are_of_the_full_distribution_at_the_temperature(temperature: float) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=temperature, top_p=0.7, top_k=30)
    with TransformersEngine(MODEL, TOKENIZER) as engine:
        for prompt, result in zip(prompts(6), generate(engine, [(p, sampling) for p in prompts(6)]), strict=True):
            assert_matches_full_forward(prompt, result, temperature=temperature)


def test_settings_are_kept_per_row_in_a_mixed_batch() -> None:
    settings = [
        GREEDY,
        SamplingParams(max_tokens=12, temperature=0.3),
        SamplingParams(max_tokens=12, top_k=1),
        SamplingParams(max_tokens=12, top_p=1e-6),
        SamplingParams(max_tokens=12),
    ]
    with TransformersEngine(MODEL, TOKENIZER) as engine:
        results = generate(engine, list(zip(prompts(5), settings, strict=True)))
    for prompt, sampling, result in zip(prompts(5), settings, results, strict=True):
        greedy = sampling.temperature == 0 or sampling.top_k == 1 or sampling.top_p < 1e-3
        assert_matches_full_forward(prompt, result, temperature=sampling.temperature or 1.0, greedy=greedy)


def test_seeded_requests_do_not_depend_on_the_batch() -> None:
    seeded = SamplingParams(max_tokens=30, seed=11)
    (prompt,) = prompts(1)
    with TransformersEngine(MODEL, TOKENIZER, max_cached_tokens=0) as engine:
        alone = generate(engine, [(prompt, seeded)])[0]
        others = [(p, SamplingParams(max_tokens=25)) for p in prompts(9, seed=5)]
        crowded = generate(engine, [*others, (prompt, seeded), *others])[9]
        other_seed = generate(engine, [(prompt, SamplingParams(max_tokens=30, seed=12))])[0]
    assert alone.token_ids == crowded.token_ids != other_seed.token_ids


def test_multi_turn_prefix_cache_changes_nothing_but_the_work() -> None:
    with TransformersEngine(MODEL, TOKENIZER) as engine:
        histories = prompts(8, low=20)
        reused = 0
        for turn in range(3):
            results = generate(engine, [(h, GREEDY) for h in histories])
            assert engine.counters()["reused_tokens"] == reused
            for i, (history, result) in enumerate(zip(histories, results, strict=True)):
                assert_matches_full_forward(history, result, greedy=True)
                reused += len(history) + len(result.token_ids) - 1  # the last token was never computed
                (observation,) = prompts(1, low=2, high=40, seed=100 * turn + i)
                histories[i] = history + result.token_ids + observation


def test_prefix_cache_leaves_a_token_to_compute() -> None:
    with TransformersEngine(MODEL, TOKENIZER) as engine:
        (prompt,) = prompts(1, low=20)
        (result,) = generate(engine, [(prompt, GREEDY)])
        known = prompt + result.token_ids[:-1]  # exactly what the cache holds
        assert_matches_full_forward(known, generate(engine, [(known, GREEDY)])[0], greedy=True)


def test_prefix_cache_keeps_to_its_budget_and_forgets_old_weights() -> None:
    running = decoder(max_cached_tokens=150)
    results: dict[int, Generation] = {}
    drain(running, [Request(p, GREEDY) for p in prompts(10, low=40)], results)
    assert 0 < running._prefixes.num_tokens <= 150
    with TransformersEngine(tiny_model(), TOKENIZER) as engine:
        (prompt,) = prompts(1, low=30)
        first = generate(engine, [(prompt, GREEDY)])[0]
        engine.update_weights(tiny_model(seed=3).named_parameters())
        longer = prompt + first.token_ids + [1, 2]
        second = generate(engine, [(longer, GREEDY)])[0]
        assert engine.counters()["reused_tokens"] == 0
    assert_matches_full_forward(longer, second, greedy=True, model=tiny_model(seed=3))


class FixedOrder(torch.nn.Module):
    """A model that always writes the ids of `script`, whatever it reads."""

    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self.inner, self.script = tiny_model(), script
        self.config, self.generation_config = self.inner.config, None

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    def forward(self, **inputs: object):
        output = self.inner(**inputs)
        for row, position in enumerate(inputs["position_ids"][:, -1].tolist()):
            output.logits[row, -1, self.script[position % len(self.script)]] += 1e4
        return output


@pytest.mark.parametrize("ending", ["whole", "spread", "with_more"])
def test_case_38_stop_strings_end_a_row_and_stay(ending: str) -> None:
    tag = {
        "whole": [TOKENIZER.piece("</search>")],
        "spread": list(b"</search>"),
        "with_more": [TOKENIZER.piece("</search>\n")],
    }[ending]
    written = [*b"> a </searc h> ", *tag]
    with TransformersEngine(FixedOrder([*written, *b" more"]), TOKENIZER) as engine:
        sampling = SamplingParams(max_tokens=40, temperature=0.0, stop=("</search>", "</answer>"))
        (result,) = generate(engine, [([65], sampling)])
        (unstopped,) = generate(engine, [([65], SamplingParams(max_tokens=40, temperature=0.0))])
    assert (result.token_ids, result.stop_reason) == (written, "stop")
    assert unstopped.stop_reason == "length" and unstopped.token_ids[: len(written)] == written


def test_eos_ends_a_row_and_is_returned() -> None:
    model = FixedOrder([65, 66, TOKENIZER.eos_token_id, 67])
    with TransformersEngine(model, TOKENIZER) as engine:
        (result,) = generate(engine, [([65], GREEDY)])
        assert (result.token_ids, result.stop_reason) == ([65, 66, TOKENIZER.eos_token_id], "eos")
        (cut,) = generate(engine, [([65], SamplingParams(max_tokens=1))])
        assert cut.stop_reason == "length"
    configured = tiny_model()
    configured.generation_config.eos_token_id = [3, 4]
    with TransformersEngine(configured, TOKENIZER) as engine:
        assert engine._decoder._eos_ids == {3, 4, TOKENIZER.eos_token_id}


def test_sampling_follows_the_distribution() -> None:
    from rag_r1.rollout.sampling import BatchSampler

    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniforms = (torch.arange(1000) + 0.5).double() / 1000
    logits = probs.log().expand(1000, 4)

    def counts(sampling: SamplingParams) -> list[int]:
        tokens, log_probs = BatchSampler([sampling] * 1000, torch.device("cpu"))(logits, uniforms)
        scaled = torch.log_softmax(logits[0] / (sampling.temperature or 1.0), -1)
        torch.testing.assert_close(log_probs, scaled[tokens])
        return torch.bincount(tokens, minlength=4).tolist()

    assert counts(SamplingParams(max_tokens=1)) == [500, 0, 300, 200]
    assert counts(SamplingParams(max_tokens=1, top_k=2)) == [625, 0, 375, 0]
    assert counts(SamplingParams(max_tokens=1, top_p=0.6)) == [625, 0, 375, 0]
    assert counts(SamplingParams(max_tokens=1, top_p=0.4)) == [1000, 0, 0, 0]
    assert counts(SamplingParams(max_tokens=1, temperature=0.0)) == [1000, 0, 0, 0]
    sharper = counts(SamplingParams(max_tokens=1, temperature=0.5))
    assert sharper == pytest.approx([1000 * p / 0.38 for p in (0.25, 0, 0.09, 0.04)], abs=2)


def test_weights_are_updated_between_requests_only() -> None:
    new = tiny_model(seed=9)
    with TransformersEngine(tiny_model(), TOKENIZER) as engine:
        (prompt,) = prompts(1)

        async def update_while_running() -> None:
            task = asyncio.create_task(engine.generate(prompt, SamplingParams(max_tokens=400)))
            await asyncio.sleep(0.02)
            with pytest.raises(RuntimeError, match="1 requests are in flight"):
                engine.update_weights(new.named_parameters())
            await task
            assert engine.update_weights(new.named_parameters()) == 1  # at once after the last result

        asyncio.run(update_while_running())
        assert engine.version == 1
        assert_matches_full_forward(prompt, generate(engine, [(prompt, GREEDY)])[0], greedy=True, model=new)


def test_half_an_update_stops_the_engine_until_a_whole_one() -> None:
    with TransformersEngine(tiny_model(), TOKENIZER) as engine:
        with pytest.raises(KeyError, match=r"no parameter or buffer 'lm_haed\.weight'"):
            engine.update_weights([("lm_haed.weight", torch.zeros(1))])
        with pytest.raises(RuntimeError, match="half-way"):
            generate(engine, [([1], GREEDY)])
        with pytest.raises(ValueError, match=r"model\.norm\.weight: shape \(1,\)"):
            engine.update_weights([("model.norm.weight", torch.zeros(1))])
        assert engine.version == 0
        assert engine.update_weights(tiny_model().named_parameters()) == 1
        assert len(generate(engine, [([1], GREEDY)])[0].token_ids) == 12


def test_error_in_the_loop_fails_the_requests_and_nothing_hangs() -> None:
    class Breaks(FixedOrder):
        broken = True

        def forward(self, **inputs: object):
            if self.broken:
                raise MemoryError("no room")
            return super().forward(**inputs)

    model = Breaks([1])
    with TransformersEngine(model, TOKENIZER, max_batch=2) as engine:

        async def several() -> list[object]:
            return await asyncio.gather(*(engine.generate([1], GREEDY) for _ in range(5)), return_exceptions=True)

        results = asyncio.run(asyncio.wait_for(several(), timeout=10))
        assert all(isinstance(r, RuntimeError) and "no room" in str(r) for r in results)
        model.broken = False
        assert len(generate(engine, [([1], GREEDY)])[0].token_ids) == 12


def test_close_fails_what_is_in_flight_and_refuses_more() -> None:
    engine = TransformersEngine(MODEL, TOKENIZER, max_batch=1)

    async def close_in_the_middle() -> list[object]:
        sampling = SamplingParams(max_tokens=1500)
        tasks = [asyncio.create_task(engine.generate([1], sampling)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(r) for r in asyncio.run(close_in_the_middle())] == [RuntimeError] * 3
    engine.close()
    assert not engine._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        generate(engine, [([1], GREEDY)])


def test_cancelled_request_leaves_the_batch() -> None:
    with TransformersEngine(MODEL, TOKENIZER, max_batch=1) as engine:

        async def cancel() -> Generation:
            task = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=1900)))
            waiting = asyncio.create_task(engine.generate([2], SamplingParams(max_tokens=1900)))
            await asyncio.sleep(0.05)
            task.cancel()
            waiting.cancel()
            result = await engine.generate([3], GREEDY)
            assert engine.update_weights([]) == 1
            return result

        assert_matches_full_forward([3], asyncio.run(asyncio.wait_for(cancel(), 20)), greedy=True)
        assert engine.counters()["decode_tokens"] < 1900


def test_several_event_loops_share_an_engine() -> None:
    results: dict[int, list[Generation]] = {}
    with TransformersEngine(MODEL, TOKENIZER) as engine:

        def client(number: int) -> None:
            results[number] = generate(engine, [(p, GREEDY) for p in prompts(4, seed=number)])

        threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    for number in range(4):
        for prompt, result in zip(prompts(4, seed=number), results[number], strict=True):
            assert_matches_full_forward(prompt, result, greedy=True)


def test_case_157_a_nan_row_does_not_harm_the_others_nor_later_ones() -> None:
    class NanForToken7(FixedOrder):
        def forward(self, **inputs: object):
            output = self.inner(**inputs)
            cache = inputs["past_key_values"]
            start = cache._plan.start
            for row, tokens in enumerate(inputs["input_ids"].tolist()):
                if tokens[-1] == 7:
                    output.logits[row] = torch.nan
                    for store in cache._stores():
                        store[start + row, : cache._plan.length] = torch.nan
            return output

    running = decoder(NanForToken7([]), max_batch=2)
    beside = Request([1] * 90, SamplingParams(max_tokens=20, temperature=0.0))  # slot 0
    poisoned = Request([5] * 60 + [7], SamplingParams(max_tokens=3))  # slot 1
    after = Request([1, 2], GREEDY)  # slot 1 again, where NaN lay in columns that it does not cover
    results: dict[int, Generation] = {}
    drain(running, [beside, poisoned, after], results, every=6)
    assert any(value != value for value in results[id(poisoned)].log_probs)
    for request in (beside, after):
        assert 7 not in results[id(request)].token_ids  # else it is poisoned by right: choose other prompts
        assert_matches_full_forward(request.prompt_ids, results[id(request)], greedy=True)


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], GREEDY, "the prompt is empty"),
        ([1, VOCABULARY], GREEDY, f"prompt ids lie in 1..{VOCABULARY}"),
        ([-1], GREEDY, "prompt ids lie in -1..-1"),
        ([1] * 2040, GREEDY, "2048 positions"),
    ],
)
def test_bad_requests_are_refused_alone(prompt: list[int], sampling: SamplingParams, message: str) -> None:
    with TransformersEngine(MODEL, TOKENIZER) as engine, pytest.raises(ValueError, match=message):
        generate(engine, [(prompt, sampling)])


def test_models_that_the_cache_does_not_fit_are_refused() -> None:
    sliding = tiny_model(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(ValueError, match="full attention in every layer"):
        TransformersEngine(sliding, TOKENIZER)

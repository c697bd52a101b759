"""The translation between verl and the generation manager: engine in, trajectory out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import orjson
import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from rag_r1.retrieval.types import Passage, RetrievalError
from rag_r1.rollout import SamplingParams
from rag_r1.toyworld.tokenizer import build_tokenizer
from rag_r1.training.agent_loop import SearchAgentLoop, Shared, VerlEngine

TURNS = ["<think>known</think><search>Kalmo</search>", "<think>known</think><answer>Besnu</answer>"]


class FakeServer:
    """verl's LLM server client: answers with the next text, and keeps what it was asked."""

    def __init__(self, tokenizer, turns=TURNS):
        self.tokenizer, self.turns, self.requests = tokenizer, list(turns), []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.requests.append((request_id, list(prompt_ids), sampling_params))
        ids = self.tokenizer.encode(self.turns.pop(0), add_special_tokens=False)
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={"global_steps": 7}
        )


class FakeRetriever:
    def __init__(self, error=None):
        self.error = error

    async def search(self, queries, topk):
        if self.error:
            raise self.error
        return [[Passage(3, f"{query}   {query} is a city in the country Besnu.", 0.9)] for query in queries]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def loop(tokenizer, tmp_path):
    """An agent loop over fakes, as verl makes it; `loop.shared` is what a worker process shares."""
    config = OmegaConf.create(
        {
            "rag_r1": {
                "protocol": "multi_query",
                "prompt_file": "rag_r1/toyworld/prompts/multi_query.txt",
                "trajectories_path": str(tmp_path / "trajectories.jsonl"),
                "retriever": {"topk": 1},
                "budget": {"max_prompt_tokens": 64, "max_response_tokens": 256, "max_turn_tokens": 64},
            },
            "actor_rollout_ref": {"rollout": {"name": "transformers", "seed": 5}},
        }
    )
    SearchAgentLoop._shared = None
    made = SearchAgentLoop(SimpleNamespace(config=config), FakeServer(tokenizer), tokenizer, processor=None)
    made.shared.__dict__["retriever"] = FakeRetriever()
    yield made
    SearchAgentLoop._shared = None


ROW = {
    "raw_prompt": [{"role": "user", "content": "Where is Kalmo"}],
    "reward_model": {"ground_truth": {"target": ["besnu"]}},
    "extra_info": {"id": "q1"},
    "kind": "single_hop",
    "global_steps": 3,
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


def run(loop, **changes):
    return asyncio.run(loop.run(SAMPLING, **{**ROW, **changes}))


def test_output_is_the_trajectory_with_mask_reward_and_metrics(loop, tokenizer):
    output = run(loop)
    server = loop.engine._server
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in TURNS)
    assert output.response_ids[: len(first)] == first
    assert output.response_ids[-len(second) :] == second
    observation = len(output.response_ids) - len(first) - len(second)
    assert observation > 0
    assert output.response_mask == [1] * len(first) + [0] * observation + [1] * len(second)
    assert output.response_logprobs == [-0.5 * m for m in output.response_mask]
    assert server.requests[1][1] == output.prompt_ids + output.response_ids[: len(first) + observation]  # token in
    assert output.reward_score == 1.0
    info = output.extra_fields["reward_extra_info"]
    assert (info["em"], info["rounds"], info["queries"], info["failed"]) == (1.0, 1.0, 1.0, 0.0)
    assert (output.extra_fields["min_global_steps"], output.extra_fields["kind"]) == (7, "single_hop")


def test_case_76_every_sampling_field_reaches_the_engine(loop):
    run(loop)
    ids = {request_id for request_id, _, _ in loop.engine._server.requests}
    assert len(ids) == 1  # the turns of a trajectory meet the same server's prefix cache
    sent = loop.engine._server.requests[0][2]
    assert sent["stop"] == ["</search>", "</answer>"]
    assert sent["include_stop_str_in_output"] is True
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["max_tokens"]) == (1.0, 1.0, -1, 64)


@pytest.mark.parametrize("error", [RetrievalError("down")])
def test_a_failed_retrieval_is_out_of_the_loss_and_counted(loop, error):
    loop.shared.__dict__["retriever"] = FakeRetriever(error)
    output = run(loop)
    assert sum(output.response_mask) == 0 and output.response_ids
    assert output.reward_score == 0.0
    assert output.extra_fields["reward_extra_info"]["failed"] == 1.0
    assert output.extra_fields["end_reason"] == "retrieval_failed"


def test_cases_62_71_a_prompt_too_long_keeps_shapes_whole(loop):
    output = run(loop, raw_prompt=[{"role": "user", "content": "who " * 300}])
    assert len(output.prompt_ids) == 64
    assert (output.response_mask, len(output.response_ids)) == ([0], 1)
    assert not loop.engine._server.requests  # it never reached the engine


def test_the_record_says_what_happened(loop):
    run(loop)
    record = orjson.loads(loop.shared.recorder.path.read_bytes())
    assert (record["id"], record["step"], record["kind"]) == ("q1", 3, "single_hop")
    assert record["turns"][0]["queries"] == ["Kalmo"]
    assert record["turns"][0]["passages"] == [[{"id": 3, "score": 0.9}]]
    assert record["metrics"]["em"] == 1.0


def test_a_request_has_the_same_seed_in_every_run_and_another_in_every_step(loop, tokenizer):
    def seeds(**changes):
        loop.engine = VerlEngine(FakeServer(tokenizer))
        run(loop, **changes)
        return [sampling["seed"] for _, _, sampling in loop.engine._server.requests]

    first = seeds()
    assert len(set(first)) == 2  # turns differ
    assert seeds() == first
    assert not set(seeds(global_steps=4)) & set(first)
    assert not set(seeds(session_id=1)) & set(first)


def test_a_turn_cut_by_its_length_is_told_from_a_stop_by_its_ids(tokenizer):
    engine = VerlEngine(FakeServer(tokenizer, TURNS[:1] * 2))
    length = len(tokenizer.encode(TURNS[0], add_special_tokens=False))

    def reason(max_tokens):
        return asyncio.run(engine.generate([1], SamplingParams(max_tokens=max_tokens))).stop_reason

    assert (reason(length), reason(length + 1)) == ("length", "stop")


def test_unknown_settings_are_refused_by_name():
    config = OmegaConf.create({"rag_r1": {"protocol": "multi_query", "retriever": {"top_k": 3}}})
    with pytest.raises(ValueError, match=r"rag_r1\.retriever\.top_k is not a setting; .*topk"):
        Shared(config)

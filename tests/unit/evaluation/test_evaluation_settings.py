"""From the command line to settings: configuration files, unknown keys, the facts that a run is known by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evaluation_fakes import make_record, make_rows
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rag_r1.evaluation.main import CONFIG_DIR, show
from rag_r1.evaluation.settings import EvaluationSettings, limit_rows, model_facts

GIVEN = ["model=m", "data=d.parquet", "out_dir=o", "rag_r1.protocol=multi_query"]


def composed(name: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONFIG_DIR), version_base=None):
        config = compose(name, list(overrides))
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def test_defaults_are_greedy_with_the_budget_of_training() -> None:
    settings = EvaluationSettings.from_config(composed("evaluate", *GIVEN))
    assert (settings.temperature, settings.n, settings.topk, settings.top_p) == (0.0, 1, 3, 1.0)
    assert settings.budget.max_turns == 5 and settings.budget.max_turn_tokens == 500
    assert settings.retriever_url.endswith("/retrieve")


def test_the_toy_is_evaluated_under_the_budget_that_it_is_trained_with() -> None:
    with initialize_config_dir(str(CONFIG_DIR), version_base=None):
        training = OmegaConf.to_container(compose("cpu_multi_query").rag_r1, resolve=True)
    settings = EvaluationSettings.from_config(composed("evaluate_toy", *GIVEN, "rag_r1.protocol=multi_query"))
    assert {name: getattr(settings.budget, name) for name in training["budget"]} == training["budget"]
    assert (settings.prompt_file, settings.topk) == (training["prompt_file"], training["retriever"]["topk"])


def test_overrides_have_the_names_of_training() -> None:
    config = composed(
        "evaluate", *GIVEN, "rag_r1.retriever.topk=5", "rag_r1.budget.max_turns=2", "temperature=1", "n=4"
    )
    settings = EvaluationSettings.from_config(config)
    assert (settings.topk, settings.budget.max_turns, settings.temperature, settings.n) == (5, 2, 1, 4)


@pytest.mark.parametrize("where", ["temprature", "rag_r1.topkk", "rag_r1.budget.max_turnz", "rag_r1.retriever.uri"])
def test_unknown_keys_are_refused_with_those_that_exist(where: str) -> None:
    config = composed("evaluate", *GIVEN, f"+{where}=1")
    with pytest.raises(ValueError, match=f"'{where.split('.')[-1]}' is not a setting.*which has: "):
        EvaluationSettings.from_config(config)


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="engine='vlm' is unknown: use one of transformers"):
        EvaluationSettings.from_config(composed("evaluate", *GIVEN, "engine=vlm"))


def test_a_limit_keeps_order_kinds_and_the_questions_of_a_smaller_limit() -> None:
    rows = make_rows(40)
    few, more = limit_rows(rows, 3), limit_rows(rows, 7)
    assert [row.kind for row in few].count("bridge") == [row.kind for row in few].count("single_hop") == 3
    assert {row.id for row in few} < {row.id for row in more} and len(more) == 14
    assert more == [row for row in rows if row in more]
    assert few != [row for row in rows[:6]]
    assert limit_rows(rows, None) == rows


def test_a_model_trained_further_has_another_fingerprint(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"a" * 3_000_000)
    first = model_facts(str(tmp_path))
    assert model_facts(str(tmp_path)) == first
    weights.write_bytes(b"a" * 2_999_999 + b"b")
    assert model_facts(str(tmp_path))["fingerprint"] != first["fingerprint"]
    assert model_facts("hub/name") == {"name": "hub/name", "fingerprint": None}


def test_failed_questions_are_named_and_the_run_ends_non_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = EvaluationSettings.from_config(composed("evaluate", *GIVEN, f"out_dir={tmp_path}"))
    good, bad = make_record("a", 1.0), make_record("b", 0.0, failed=True, error="RuntimeError('gone')")
    assert show([good, good], settings) == 0
    assert "| all | 2 | 1.000 |" in (tmp_path / "summary.md").read_text()
    assert show([good, bad], settings) == 1
    told = capsys.readouterr().err
    assert "1 of 2 samples failed" in told and "b (sample 0): engine_failed: RuntimeError('gone')" in told

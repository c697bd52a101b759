"""The critic: the policy's backbone under a value head that starts at zero.

verl 0.9.1 leaves the head random, so the first baselines are noise of the size of the reward, and whitening spreads it over
every advantage: on the toy, the first steps of PPO unlearned skills faster than habits. From zero, the baseline is the mean of
the batch until the critic knows better. verl also asks for flash_attention_2 by name here, and hides its absence behind a
missing package `trl`; this takes the attention that the configuration names.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForTokenClassification


def load_value_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """In place of `verl.utils.model.load_valuehead_model`; a head that the checkpoint already holds is kept as it is."""
    model, info = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in info["missing_keys"]:
                parameter.zero_()
    return model


def apply() -> None:
    from verl.utils import model

    model.load_valuehead_model = load_value_model

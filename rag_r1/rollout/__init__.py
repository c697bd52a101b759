"""Rollouts: trajectories of token ids, the multi-turn generation manager and the engines it drives.

`TransformersEngine` is imported from `rag_r1.rollout.transformers_engine`, because it needs torch; nothing here does.
"""

from __future__ import annotations

from rag_r1.rollout.engine import Engine, Generation, SamplingParams
from rag_r1.rollout.generation import Budget, GenerationManager
from rag_r1.rollout.recorder import TrajectoryRecorder
from rag_r1.rollout.tokenizer import Tokenizer, encode_prompt
from rag_r1.rollout.trajectory import END_REASONS, NOT_IN_LOSS, Trajectory, Turn

__all__ = [
    "END_REASONS",
    "NOT_IN_LOSS",
    "Budget",
    "Engine",
    "Generation",
    "GenerationManager",
    "SamplingParams",
    "Tokenizer",
    "Trajectory",
    "TrajectoryRecorder",
    "Turn",
    "encode_prompt",
]

#!/usr/bin/env bash
# PPO, one query a turn (RAG-R1-sq), the paper's settings for 8 GPUs. Arguments are Hydra overrides, passed on as they are:
#   bash train_ppo.sh actor_rollout_ref.model.path=/my/sft/model trainer.n_gpus_per_node=4
#   bash train_ppo.sh --config-name cpu_single_query     # the toy, on a CPU
#   bash train_ppo.sh --cfg job                          # print the resolved settings, start nothing
set -euo pipefail
cd "$(dirname "$0")"
[ -d .venv ] && source .venv/bin/activate
case " $* " in *" --config-name"*) ;; *) set -- --config-name ppo_single_query "$@" ;; esac
exec python -m rag_r1.training.main_ppo "$@"

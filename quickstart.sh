#!/usr/bin/env bash
# The whole loop on a CPU, from an empty clone: environment, toy encyclopedia, index, retrieval server, SFT, evaluation,
# PPO, evaluation, report. Fourteen minutes and 6 GB of memory on two cores.
#   bash quickstart.sh                 multi-query: several questions at once
#   bash quickstart.sh --mode single   one query a turn
#   bash quickstart.sh --seed 1 --steps 8 --out outputs/try     another seed, a shorter run, another folder
# A stage whose result is there already is skipped; delete the folder to start anew. Ctrl-C stops everything it started.
set -euo pipefail
cd "$(dirname "$0")"

mode=multi; seed=0; steps=""; out=""; port=8765
while [ $# -gt 0 ]; do
    case "$1" in
        --mode) mode="$2"; shift 2 ;;
        --seed) seed="$2"; shift 2 ;;
        --steps) steps="$2"; shift 2 ;;
        --out) out="$2"; shift 2 ;;
        --port) port="$2"; shift 2 ;;
        *) echo "error: unknown argument $1; known: --mode single|multi, --seed N, --steps N, --out DIR, --port N" >&2; exit 2 ;;
    esac
done
case "$mode" in
    single) script=train_ppo.sh ;;
    multi) script=train_ppo_mq.sh ;;
    *) echo "error: --mode is single or multi, got '$mode'" >&2; exit 2 ;;
esac
protocol="${mode}_query"
out="${out:-outputs/quickstart}"
shared="$out/seed$seed"            # world, index and SFT policy serve both modes
run="$shared/$mode"

source scripts/setup_env.sh dev
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONWARNINGS=ignore OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
mkdir -p "$run"
start=$SECONDS
stage() { printf '\n== [%3d s] %s\n' $((SECONDS - start)) "$1"; }

stage "toy encyclopedia, questions, tokenizer, a random tiny policy"
[ -e "$shared/toy/train.parquet" ] || python scripts/data_process/make_toy_data.py --out "$shared/toy" --seed "$seed"

stage "corpus and index: passages, MiniLM embeddings, FAISS"
bash scripts/build_corpus/run_all.sh --source "$shared/toy/pages.jsonl" --out "$shared/index"

stage "retrieval server on port $port"
source scripts/with_retrieval.sh "$shared/index" "$port" "$run/retrieval.log"

stage "SFT cold start of the tiny policy"
[ -e "$shared/sft/model.safetensors" ] || python -m rag_r1.training.sft --data "$shared/toy" --output "$shared/sft" --seed "$seed"

evaluate() { # name, model, temperature
    python scripts/evaluate.py --config-name evaluate_toy model="$2" temperature="$3" seed="$seed" limit_per_kind=200 \
        data="$shared/toy/heldout.parquet" out_dir="$run/$1" rag_r1.protocol="$protocol" rag_r1.retriever.url="$RETRIEVAL_URL"
}
stage "evaluation before PPO: greedy and sampled"
evaluate before-greedy "$shared/sft" 0
evaluate before-sampled "$shared/sft" 1

stage "PPO, $protocol"
bash "$script" --config-name "cpu_$protocol" toy_dir="$shared/toy" actor_rollout_ref.model.path="$shared/sft" \
    rag_r1.retriever.url="$RETRIEVAL_URL" trainer.default_local_dir="$run/ppo" data.seed="$seed" \
    actor_rollout_ref.rollout.seed="$seed" ${steps:+trainer.total_training_steps="$steps" trainer.save_freq="$steps"} \
    2>&1 | tee "$run/ppo.log" | grep --line-buffered -E "Training Progress|rror|aved"
last="$run/ppo/global_step_$(cat "$run/ppo/latest_checkpointed_iteration.txt")/actor/huggingface"

stage "evaluation after PPO: greedy and sampled"
evaluate after-greedy "$last" 0
evaluate after-sampled "$last" 1

stage "report"
python scripts/report.py --before "$run/before-greedy" "$run/before-sampled" --after "$run/after-greedy" "$run/after-sampled" \
    --metrics "$run/ppo" --title "Toy, $protocol, seed $seed" --out "$run/report" \
    --fact checkpoint="$last" --fact trajectories="$run/ppo/trajectories.jsonl" --fact seed="$seed"
echo "checkpoint:   $last"
echo "trajectories: $run/ppo/trajectories.jsonl"
printf 'done in %d s\n' $((SECONDS - start))

#!/usr/bin/env bash
# The whole loop on a CPU, from an empty clone: environment, toy encyclopedia, index, retrieval server, SFT, evaluation,
# PPO, evaluation, report. About 25 minutes on two cores.
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
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONWARNINGS=ignore
mkdir -p "$run"
start=$SECONDS
stage() { printf '\n== [%3d s] %s\n' $((SECONDS - start)) "$1"; }

server=""
stop_server() { [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true; }
trap stop_server EXIT
trap 'exit 130' INT TERM

stage "toy encyclopedia, questions, tokenizer, a random tiny policy"
[ -e "$shared/toy/train.parquet" ] || python scripts/data_process/make_toy_data.py --out "$shared/toy" --seed "$seed"

stage "corpus and index: passages, MiniLM embeddings, FAISS"
if [ ! -e "$shared/index/manifest.json" ]; then
    python scripts/build_corpus/split_kilt.py --input "$shared/toy/pages.jsonl" --output "$shared/index"
    python scripts/build_corpus/build_embeddings.py --index "$shared/index" --encoder minilm
    python scripts/build_corpus/build_index.py --index "$shared/index"
fi

stage "retrieval server on port $port"
python start_retrieval.py --index "$shared/index" --port "$port" > "$run/retrieval.log" 2>&1 &
server=$!
for _ in $(seq 120); do
    curl --silent --fail --noproxy '*' "http://127.0.0.1:$port/health" > /dev/null && break
    kill -0 "$server" 2>/dev/null || { cat "$run/retrieval.log" >&2; exit 1; }
    sleep 0.5
done

stage "SFT cold start of the tiny policy"
[ -e "$shared/sft/model.safetensors" ] || python -m rag_r1.training.sft --data "$shared/toy" --output "$shared/sft" --seed "$seed"

evaluate() { # name, model, temperature
    [ -e "$run/eval/$1.summary.json" ] || python scripts/evaluate.py model="$2" protocol="$protocol" temperature="$3" \
        data="$shared/toy/heldout.parquet" retriever.url="http://127.0.0.1:$port/retrieve" seed="$seed" \
        output="$run/eval/$1.jsonl"
}
stage "evaluation before PPO: greedy and sampled"
evaluate before-greedy "$shared/sft" 0
evaluate before-sampled "$shared/sft" 1

stage "PPO, $protocol"
bash "$script" --config-name "cpu_$protocol" toy_dir="$shared/toy" actor_rollout_ref.model.path="$shared/sft" \
    rag_r1.retriever.url="http://127.0.0.1:$port/retrieve" trainer.default_local_dir="$run/ppo" data.seed="$seed" \
    actor_rollout_ref.rollout.seed="$seed" ${steps:+trainer.total_training_steps="$steps" trainer.save_freq="$steps"} \
    2>&1 | tee "$run/ppo.log" | grep --line-buffered -E "Training Progress|rror|aved"
last="$run/ppo/global_step_$(cat "$run/ppo/latest_checkpointed_iteration.txt")/actor/huggingface"

stage "evaluation after PPO: greedy and sampled"
evaluate after-greedy "$last" 0
evaluate after-sampled "$last" 1

stage "report"
python scripts/report.py --eval "$run/eval" --metrics "$run/ppo" --output "$run/report"
echo
echo "checkpoint    $last"
echo "trajectories  $run/ppo/trajectories.jsonl"
echo "report        $run/report/report.html"
printf 'done in %d s\n' $((SECONDS - start))

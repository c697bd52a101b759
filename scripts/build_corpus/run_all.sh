#!/usr/bin/env bash
# From a source to an index that start_retrieval.py serves: passages, embeddings, FAISS shards. Each stage goes on after a kill, and
# does nothing where its result is there already.
#   bash scripts/build_corpus/run_all.sh --source SOURCE --out INDEX [--encoder minilm] [--shards 3] [--kind flat]
# SOURCE: KILT pages, FlashRAG or Search-R1 JSON lines, or .tsv of ready passages. The default encoder comes with the package.
set -euo pipefail
here="$(dirname "$0")"
source_file=""; out=""; encoder=minilm; shards=3; kind=flat
while [ $# -gt 0 ]; do
    case "$1" in
        --source) source_file="$2"; shift 2 ;;
        --out) out="$2"; shift 2 ;;
        --encoder) encoder="$2"; shift 2 ;;
        --shards) shards="$2"; shift 2 ;;
        --kind) kind="$2"; shift 2 ;;
        *) echo "error: unknown argument $1; known: --source, --out, --encoder, --shards, --kind" >&2; exit 2 ;;
    esac
done
[ -n "$source_file" ] && [ -n "$out" ] || { echo "error: --source FILE and --out DIR are needed" >&2; exit 2; }
python "$here/split_kilt.py" --source "$source_file" --index "$out"
python "$here/build_embeddings.py" --index "$out" --encoder "$encoder" --shards "$shards"
python "$here/build_index.py" --index "$out" --kind "$kind"

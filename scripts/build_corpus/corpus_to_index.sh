#!/usr/bin/env bash
# From a corpus to a served index, in the three steps of scripts/build_corpus: passages, embeddings, FAISS shards.
# Does nothing where the index is there already: the manifest names its FAISS shards last of all.
#   bash scripts/build_corpus/corpus_to_index.sh SOURCE INDEX [ENCODER]     SOURCE: KILT pages (.jsonl) or passages (.tsv)
set -euo pipefail
source_file="$1"; index="$2"; encoder="${3:-minilm}"
! grep -qs '\.faiss"' "$index/manifest.json" || exit 0
here="$(dirname "$0")"
python "$here/split_kilt.py" --source "$source_file" --index "$index"
python "$here/build_embeddings.py" --index "$index" --encoder "$encoder"
python "$here/build_index.py" --index "$index"

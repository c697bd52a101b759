# Sourced: start a retrieval server over an index for as long as the calling script lives, and set RETRIEVAL_URL.
#   source scripts/with_retrieval.sh INDEX PORT LOG
RETRIEVAL_URL="http://127.0.0.1:$2/retrieve"
python start_retrieval.py --index "$1" --port "$2" > "$3" 2>&1 &
retrieval_pid=$!
trap 'kill "$retrieval_pid" 2>/dev/null || true; wait "$retrieval_pid" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
for _ in $(seq 240); do
    curl --silent --fail --noproxy '*' "http://127.0.0.1:$2/health" > /dev/null && break
    kill -0 "$retrieval_pid" 2>/dev/null || { echo "error: the retrieval server did not start:" >&2; cat "$3" >&2; exit 1; }
    sleep 0.5
done

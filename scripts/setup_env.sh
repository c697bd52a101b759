#!/usr/bin/env bash
# Make .venv beside the code, once, and install the package with the extras named as arguments (default: dev).
# Sourced by quickstart.sh and scripts/test.sh; a finished install is remembered by the hash of pyproject.toml.
set -euo pipefail
extras="${1:-dev}"
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' ||
    { echo "error: Python 3.10, 3.11 or 3.12 is needed, $python is $("$python" -V 2>&1); set PYTHON=/path/to/python3.11" >&2; exit 2; }
[ -x .venv/bin/python ] || "$python" -m venv .venv
source .venv/bin/activate
stamp=".venv/.installed-$(cat pyproject.toml constraints-py311.txt <(echo "$extras") | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    echo "== installing rag-r1[$extras] into .venv (2 to 6 minutes)"
    tested=()
    python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' && tested=(-c constraints-py311.txt)
    # torch first and by itself: a CPU-only build satisfies everything that follows
    pip install --quiet --disable-pip-version-check "torch>=2.11,<2.14"
    pip install --quiet --disable-pip-version-check "${tested[@]}" -e ".[$extras]"
    touch "$stamp"
fi

#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lint, types, layers, unit tests, end-to-end tests.
#   bash scripts/test.sh               all of it
#   bash scripts/test.sh -m 'not e2e'  without the minutes-long PPO runs; arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_env.sh dev,smollm2
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
echo "== ruff";         ruff format --check . && ruff check .
echo "== mypy";         mypy
echo "== import-linter"; lint-imports
echo "== pytest";       python -m pytest "$@"

"""Whether a parquet file can be trained on: columns first, then every row, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from rag_r1.data.rows import DataError

COLUMNS = ("prompt", "reward_model", "data_source", "extra_info")


def check_parquet(path: str | Path) -> int:
    """The number of rows; DataError names the file, the row and the key of the first fault."""
    file = pq.ParquetFile(path)
    missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise DataError(
            f"{path}: no column {missing[0]!r}; it has {file.schema_arrow.names}. Make it with "
            "scripts/data_process/make_rl_data.py"
        )
    number = 0
    for batch in file.iter_batches(columns=["prompt", "reward_model", "data_source"]):
        for row in batch.to_pylist():
            if not row["data_source"]:
                raise DataError(f"{path}, row {number}: 'data_source' is empty")
            if not row["prompt"] or not (row["prompt"][-1].get("content") or "").strip():
                raise DataError(f"{path}, row {number}: 'prompt' holds no question")
            target = ((row["reward_model"] or {}).get("ground_truth") or {}).get("target")
            if not target:
                raise DataError(f"{path}, row {number}: 'reward_model.ground_truth.target' is empty")
            number += 1
    return number

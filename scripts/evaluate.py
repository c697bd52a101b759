"""Score a model on questions: see rag_r1/evaluation/main.py and configs/evaluate.yaml.

python scripts/evaluate.py model=DIR data=FILE rag_r1.protocol=multi_query out_dir=DIR
"""

from __future__ import annotations

from rag_r1.evaluation.main import main

if __name__ == "__main__":
    main()

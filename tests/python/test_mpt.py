"""Our MPT against transformers: logits, loss, gradients, and folders that go both ways."""

import pytest
import torch
from transformers import MptConfig, MptForCausalLM

import model_support
from model_support import (
    assert_loads,
    assert_same_results,
    check_tool,
    double_loss,
    edit_tensors,
    names_in,
    our_results,
    random_ids,
    reference_results,
    relative_error,
)

SMALL = dict(
    vocab_size=101,
    max_seq_len=64,
    d_model=48,
    n_layers=2,
    n_heads=4,
    # Large enough that attention is not nearly uniform, so that errors in it show.
    initializer_range=0.3,
)

CONFIGS = {
    name: MptConfig(**{**SMALL, **changes})
    for name, changes in {
        "tied": {},
        "untied": {"tie_word_embeddings": False},
        "six_heads": {"n_heads": 6, "n_layers": 3},
        "one_head": {"n_heads": 1},
        "twelve_heads": {"n_heads": 12},
        "clipped": {"attn_config": {"clip_qkv": 0.7}},
        "scaled": {"attn_config": {"softmax_scale": 0.05}},
        "large_epsilon": {"layer_norm_epsilon": 0.1},
    }.items()
}
# fp32: the effect of the order of additions, relative to the norm of a tensor; several times the largest one seen.
TOLERANCE = 1e-5


def random_model(name, dtype=torch.float32):
    return model_support.random_model(MptForCausalLM, CONFIGS[name], sum(map(ord, name)), dtype)


@pytest.mark.parametrize("name", CONFIGS)
def test_fp32_equals_transformers(name, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), TOLERANCE)


# Slopes and biases of up to eight heads are powers of two and their multiples, which the fp32 of transformers holds.
@pytest.mark.parametrize("name", ["tied", "untied", "six_heads", "clipped", "scaled"])
def test_fp64_equals_transformers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(MptForCausalLM, "loss_function", staticmethod(double_loss))
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # transformers' softmax would be in fp32
    model = random_model(name, torch.float64)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp64", ids, tmp_path), reference_results(model, ids), 1e-11)


def test_bf16_is_as_close_to_fp32_as_transformers_in_bf16(tmp_path):
    model = random_model("tied", torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    exact = reference_results(model.float(), ids)
    theirs = reference_results(model.to(torch.bfloat16), ids)
    ours = our_results(tmp_path, "bf16", ids, tmp_path)
    assert ours["logits"].dtype == torch.bfloat16 and ours["loss"].dtype == torch.float32
    for result, expected in exact.items():
        assert relative_error(ours[result], expected) <= 2 * relative_error(theirs[result], expected) + 1e-3, result


def test_ignored_labels(tmp_path):
    model = random_model("untied")
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    labels = torch.where(torch.arange(29) % 3 == 0, -100, ids)
    ours = our_results(tmp_path, "fp32", ids, tmp_path, labels)
    assert_same_results(ours, reference_results(model, ids, labels), TOLERANCE)


def test_folders_without_head(tmp_path):
    """As of MptModel: names without "transformer."."""
    model = random_model("tied")
    source, target = tmp_path / "source", tmp_path / "target"
    model.save_pretrained(source)
    edit_tensors(source, lambda tensors: {name.removeprefix("transformer."): t for name, t in tensors.items()})
    ids = random_ids(model.config)
    assert_same_results(our_results(source, "fp32", ids, tmp_path), reference_results(model, ids), TOLERANCE)
    check_tool("model_resave", source, "fp32", target, 10**9)
    assert_loads(target, model)


@pytest.mark.parametrize("max_shard_bytes", [10**9, 40000])
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_saved_folders_load_in_transformers(name, max_shard_bytes, tmp_path):
    model = random_model(name)
    source, target, theirs = tmp_path / "source", tmp_path / "target", tmp_path / "theirs"
    model.save_pretrained(source)
    check_tool("model_resave", source, "fp32", target, max_shard_bytes)
    files = list(target.glob("model*.safetensors"))
    assert (len(files) == 1) == (max_shard_bytes == 10**9)
    assert_loads(target, model)
    MptForCausalLM.from_pretrained(target).save_pretrained(theirs)
    assert names_in(target) == names_in(theirs)

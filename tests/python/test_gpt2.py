"""Our GPT-2 against transformers: logits, loss, gradients, and folders that go both ways."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import model_support
from model_support import (
    assert_loads,
    assert_same_results,
    check_tool,
    double_loss,
    edit_config,
    edit_tensors,
    names_in,
    our_results,
    random_ids,
    reference_results,
    relative_error,
)

SMALL = dict(
    vocab_size=101,
    n_positions=64,
    n_embd=48,
    n_layer=2,
    n_head=6,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    # Large enough that attention is not nearly uniform, so that errors in it show.
    initializer_range=0.3,
)

CONFIGS = {
    name: GPT2Config(**{**SMALL, **changes})
    for name, changes in {
        "tied": {},
        "untied": {"tie_word_embeddings": False},
        "inner": {"n_inner": 68, "n_layer": 3},
        "one_head": {"n_head": 1},
        "unscaled": {"scale_attn_weights": False, "initializer_range": 0.1},
        "by_layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 4},
        "upcast": {"reorder_and_upcast_attn": True, "attn_implementation": "eager"},
        "large_epsilon": {"layer_norm_epsilon": 0.1},
        "gelu": {"activation_function": "gelu"},
        "gelu_tanh": {"activation_function": "gelu_pytorch_tanh"},
        "relu": {"activation_function": "relu"},
        "silu": {"activation_function": "silu"},
        "with_dropout_in_training": {"resid_pdrop": 0.3, "embd_pdrop": 0.2, "attn_pdrop": 0.1},
    }.items()
}
# fp32: what the order of additions changes, relative to the norm of a tensor; several times what is seen.
TOLERANCE = 1e-5


def random_model(name, dtype=torch.float32):
    return model_support.random_model(GPT2LMHeadModel, CONFIGS[name], sum(map(ord, name)), dtype)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "dropout" not in name])
def test_fp32_equals_transformers(name, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), TOLERANCE)


@pytest.mark.parametrize("name", ["tied", "untied", "unscaled", "by_layer"])
def test_fp64_equals_transformers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(GPT2LMHeadModel, "loss_function", staticmethod(double_loss))
    model = random_model(name, torch.float64)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp64", ids, tmp_path), reference_results(model, ids), 1e-11)


@pytest.mark.parametrize("name", ["tied", "upcast"])
def test_bf16_is_as_close_to_fp32_as_transformers_in_bf16(name, tmp_path):
    model = random_model(name, torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    exact = reference_results(model.float(), ids)
    theirs = reference_results(model.to(torch.bfloat16), ids)
    ours = our_results(tmp_path, "bf16", ids, tmp_path)
    assert ours["logits"].dtype == torch.bfloat16 and ours["loss"].dtype == torch.float32
    for result, expected in exact.items():
        assert relative_error(ours[result], expected) <= 2 * relative_error(theirs[result], expected) + 1e-3, result


def test_dropout_is_in_the_model_that_trains(tmp_path):
    model = random_model("with_dropout_in_training")
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    assert relative_error(our_results(tmp_path, "fp32", ids, tmp_path)["logits"], model.eval()(ids).logits) > 0.01


def test_ignored_labels(tmp_path):
    model = random_model("untied")
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    labels = torch.where(torch.arange(29) % 3 == 0, -100, ids)
    ours = our_results(tmp_path, "fp32", ids, tmp_path, labels)
    assert_same_results(ours, reference_results(model, ids, labels), TOLERANCE)


def test_keys_that_early_configs_lack(tmp_path):
    """With the defaults of transformers; dropout apart, which is not 0 by default."""
    model = random_model("tied")
    model.save_pretrained(tmp_path)
    optional = [
        "n_inner",
        "activation_function",
        "layer_norm_epsilon",
        "initializer_range",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "add_cross_attention",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "dtype",
    ]
    edit_config(tmp_path, lambda config: [config.pop(key, None) for key in optional] and config.update(n_ctx=64))
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), TOLERANCE)


def to_old_names(tensors):
    """As openai-community's folders: without "transformer.", with masks among the weights."""
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(2):
        named[f"h.{layer}.attn.bias"] = torch.ones(64, 64).tril().view(1, 1, 64, 64)
        named[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return named


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_old_folders(name, tmp_path):
    model = random_model(name)
    source, target = tmp_path / "source", tmp_path / "target"
    model.save_pretrained(source)
    edit_tensors(source, to_old_names)
    ids = random_ids(model.config)
    reference = reference_results(GPT2LMHeadModel.from_pretrained(source), ids)
    assert_same_results(reference, reference_results(model, ids), 0)  # that they load in transformers
    assert_same_results(our_results(source, "fp32", ids, tmp_path), reference, TOLERANCE)
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
    GPT2LMHeadModel.from_pretrained(target).save_pretrained(theirs)
    assert names_in(target) == names_in(theirs)

"""Mixtures of experts: both forms of folders, and experts that no token chooses."""

import json

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

import model_support
from decoder_configs import assert_same_model, config_of, decoder_from
from model_support import (
    assert_same_results,
    check_tool,
    edit_config,
    edit_tensors,
    our_results,
    random_ids,
    reference_results,
    run_tool,
)

FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"]
SEPARATE = {"mixtral": "block_sparse_moe.experts.1.w3.weight"}  # others as published ones of Qwen
FUSED = "model.layers.0.mlp.experts.gate_up_proj"


def random_model(family):
    config = config_of(family)
    return model_support.random_model(decoder_from, config, 11 + len(family))


def save(model, folder, form):
    model.save_pretrained(folder, save_original_format=form == "separate")


def names_in(folder):
    return {name for path in folder.glob("*.safetensors") for name in safetensors.torch.load_file(path)}


def is_fused(folder):
    return FUSED in names_in(folder)


@pytest.mark.parametrize("form", ["separate", "fused"])
@pytest.mark.parametrize("family", FAMILIES)
def test_folders_of_both_forms_are_read_and_written(family, form, tmp_path):
    model = random_model(family)
    source, target = tmp_path / "source", tmp_path / "target"
    save(model, source, form)
    assert is_fused(source) == (form == "fused")
    if form == "separate":
        assert any(SEPARATE.get(family, "mlp.experts.1.up_proj.weight") in name for name in names_in(source))
    ids = random_ids(model.config)
    reference = reference_results(model, ids)
    assert_same_results(our_results(source, "fp32", ids, tmp_path), reference, 1e-5)
    check_tool("model_resave", source, "fp32", target, 20000)
    assert len(list(target.glob("model*.safetensors"))) > 1
    assert names_in(target) == names_in(source)
    assert_same_model(target, model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_expert_is_named(family, tmp_path):
    model = random_model(family)
    save(model, tmp_path, "separate")
    lost = next(name for name in sorted(names_in(tmp_path)) if ".experts.3." in name)
    edit_tensors(tmp_path, lambda tensors: {name: value for name, value in tensors.items() if name != lost})
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1
    assert lost in result.stderr and "missing" in result.stderr, result.stderr


def test_experts_of_another_shape_are_named(tmp_path):
    model = random_model("qwen3_moe")
    save(model, tmp_path, "separate")
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    edit_tensors(tmp_path, lambda tensors: {**tensors, name: tensors[name][:, :-1].contiguous()})
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1
    assert name in result.stderr, result.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_without_tokens_have_gradients_of_zero(family, tmp_path):
    model = random_model(family)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config, 1, 3)  # three tokens reach few experts
    ours, reference = our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids)
    assert_same_results(ours, reference, 2e-5)
    gradients = [value for name, value in ours.items() if name.endswith("experts.gate_up_proj")]
    assert any((of_layer.flatten(1) == 0).all(1).any() for of_layer in gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_conversions_know_experts(family, tmp_path):
    """A folder, a checkpoint and a folder again: the same tensors under the same names."""
    model = random_model(family)
    save(model, tmp_path / "source", "separate")
    check_tool("fsdp", "convert", tmp_path / "source", tmp_path / "checkpoint")
    check_tool("fsdp", "convert", tmp_path / "checkpoint", tmp_path / "target")
    assert_same_model(tmp_path / "target", model)
    assert names_in(tmp_path / "target") == names_in(tmp_path / "source")
    listed = check_tool("fsdp", "inspect", tmp_path / "checkpoint").stdout
    assert FUSED in listed, listed


def train(source, output, ranks):
    """Trains four steps of four samples over some ranks; returns the losses and the saved folder."""
    config = {
        "model_path": str(source),
        "dataset": "dummy:64",
        "max_seq_length": 16,
        "train_batch_size": 4 // ranks,
        "max_steps": 4,
        "dtype": "fp32",
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_final": True,
        "output_dir": str(output),
    }
    path = output.with_suffix(".json")
    path.write_text(json.dumps(config))
    check_tool("fsdp", "train", "--config-path", path, "--nproc-per-node", ranks)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], output / "final"


@pytest.mark.parametrize("family,form", [(family, "separate") for family in FAMILIES] + [("mixtral", "fused")])
def test_training_over_ranks_is_that_of_one_process(family, form, tmp_path):
    """The folder that two ranks save has the form of the one that they read, and loads in transformers."""
    model = random_model(family)
    save(model, tmp_path / "source", form)
    one, of_one = train(tmp_path / "source", tmp_path / "one", 1)
    two, of_two = train(tmp_path / "source", tmp_path / "two", 2)
    assert len(one) == 4 and one == pytest.approx(two, rel=1e-5)
    assert names_in(of_two) == names_in(tmp_path / "source")
    loaded = AutoModelForCausalLM.from_pretrained(of_one, experts_implementation="eager")
    assert not torch.equal(loaded.state_dict()[FUSED], model.state_dict()[FUSED])
    assert_same_model(of_two, loaded, 2e-3)


def test_training_adds_the_loss_of_the_router(tmp_path):
    config = config_of("qwen3_moe", "router_loss")
    config.router_aux_loss_coef = 0.5
    model = model_support.random_model(decoder_from, config, 5)
    model.save_pretrained(tmp_path / "source")
    with_loss, _ = train(tmp_path / "source", tmp_path / "with", 2)
    edit_config(tmp_path / "source", lambda config: config.update(output_router_logits=False))
    without, _ = train(tmp_path / "source", tmp_path / "without", 2)
    assert with_loss[0] > without[0] + 0.5  # at least the number of experts of a token, 2, times the coefficient

"""Presets beside the models that transformers makes of the same configs, without memory: names, shapes, FLOPs."""

import json
import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForSeq2SeqLM

from model_support import check_tool

GPT2 = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "mingpt-175b"]
DECODERS = [
    "llama-3.2-1b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "smollm2-135m",
    "smollm3-3b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen3-32b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.3",
    "ministral-8b",
    "granite-3.3-2b",
    "granite-3.3-8b",
    "gemma-2b",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-3-1b",
    "phi-3-mini-4k",
    "phi-4",
    "phi-4-mini",
    "olmo-2-7b",
    "olmo-3-7b",
    "glm-4-9b",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "olmoe-1b-7b",
]
MPT = ["mpt-7b", "mpt-30b"]
T5 = ["t5-611m", "t5-2b", "t5-11b"]
REGNETS = ["regnet-x-400mf", "regnet-y-400mf", "regnet-9b"]
OF_THIS_PROJECT = ["deepvit-s", "deepvit-8b", "dhen-550m"]  # transformers has no such models
AUTO_CLASSES = {"t5": AutoModelForSeq2SeqLM, "regnet": AutoModelForImageClassification}
LENGTHS = (500, 4000, 100000)  # shorter than all windows, between them, and longer


def our_facts(name, *lengths):
    return json.loads(check_tool("preset_facts", name, *lengths).stdout)


def transformers_model(config):
    settings = {key: value for key, value in config.items() if key != "architectures"}
    with torch.device("meta"):
        auto_class = AUTO_CLASSES.get(config["model_type"], AutoModelForCausalLM)
        model = auto_class.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    assert [type(model).__name__] == config["architectures"]
    return model


def test_all_presets_are_compared():
    assert set(json.loads(check_tool("preset_facts").stdout)) == {
        *GPT2,
        *MPT,
        *DECODERS,
        *T5,
        *REGNETS,
        *OF_THIS_PROJECT,
    }


def test_all_presets_are_in_the_document(source_dir):
    table = (source_dir / "docs/models.md").read_text().partition("\n## Presets\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.M))))
    assert documented == set(json.loads(check_tool("preset_facts").stdout))


@pytest.mark.parametrize("name", [*GPT2, *MPT, *DECODERS, *T5, *REGNETS])
def test_names_and_shapes_are_those_of_transformers(name):
    facts = our_facts(name)
    model = transformers_model(facts["config"])
    theirs = {key: list(value.shape) for key, value in model.named_parameters(remove_duplicate=False)}
    assert facts["parameters"] == theirs


def windows(config):
    """For each layer the number of keys that a query sees at most, or None for all before it."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in types]


def weights_of_token(mlp, config):
    """The weights of the router and of the experts that multiply one token; 0 of a layer without experts."""
    if not hasattr(mlp, "experts"):
        return 0
    of_all = mlp.experts.gate_up_proj.numel() + mlp.experts.down_proj.numel()
    experts = mlp.experts.gate_up_proj.shape[0]
    return mlp.gate.weight.numel() + of_all // experts * config.num_experts_per_tok


@pytest.mark.parametrize("name", DECODERS)
def test_flops_are_those_of_linear_layers_and_attention(name):
    facts = our_facts(name, *LENGTHS)
    model = transformers_model(facts["config"])
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    weights += sum(weights_of_token(layer.mlp, model.config) for layer in model.model.layers)
    widths = [layer.self_attn.o_proj.in_features for layer in model.model.layers]  # of all heads together
    for length in LENGTHS:
        keys = [min(length, window or length) for window in windows(model.config)]
        attention = sum(12 * width * seen for width, seen in zip(widths, keys, strict=True))
        assert facts["flops_per_token"][str(length)] == 6 * weights + attention, length

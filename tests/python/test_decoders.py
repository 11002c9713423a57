"""Every family of decoders against transformers: logits, loss, gradients, and folders that go both ways."""

import contextlib
import importlib

import pytest
import torch
from transformers import AutoModelForCausalLM

import model_support
from decoder_configs import CASES, FAMILIES, assert_same_model, config_of, decoder_from
from model_support import (
    assert_same_results,
    check_tool,
    double_loss,
    edit_config,
    our_results,
    random_ids,
    reference_results,
    relative_error,
    run_forward,
    run_tool,
)

FP32 = 1e-5  # what the order of additions changes
# 2e-5 is seen on some processors, of gradients of logits that no cap keeps small. Differences of meaning show in fp64.
FP32_WITHOUT_CAPS = 5e-5


def random_model(family, name, dtype=torch.float32):
    config = config_of(family, name)
    return model_support.random_model(decoder_from, config, sum(map(ord, family + name)), dtype)


def reference_model(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, experts_implementation="eager")


def norm_in_double(self, x):
    """An RMSNorm of transformers without its rounding to fp32."""
    quotient = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + (self.eps if self.is_gemma else self.variance_epsilon))
    return quotient * (1.0 + self.weight) if self.is_gemma else self.weight * quotient


@contextlib.contextmanager
def transformers_in_double(model):
    """transformers rounds norms, softmax and logits to fp32 whatever the dtype of the model; here it does not."""
    softmax = torch.nn.functional.softmax
    modeling = importlib.import_module(type(model).__module__)
    with pytest.MonkeyPatch.context() as patch:
        for name, norm in vars(modeling).items():
            if name.endswith("RMSNorm"):
                patch.setattr(norm, "is_gemma", name.startswith("Gemma"), raising=False)
                patch.setattr(norm, "forward", norm_in_double)
        patch.setattr(torch.nn.functional, "softmax", lambda x, dim=None, dtype=None: softmax(x, dim=dim))
        patch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else x.to(torch.float32))
        patch.setattr(type(model), "loss_function", staticmethod(double_loss))
        yield


@pytest.mark.parametrize("family,name", CASES)
def test_fp32_equals_transformers(family, name, tmp_path):
    model = random_model(family, name)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    tolerance = FP32_WITHOUT_CAPS if name == "no_caps" else FP32
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), tolerance)


@pytest.mark.parametrize("family,name", CASES)
def test_fp64_equals_transformers(family, name, tmp_path):
    model = random_model(family, name, torch.float64)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    with transformers_in_double(model):
        reference = reference_results(model, ids)
    # The load-balancing loss of transformers counts tokens in fp32.
    assert_same_results(our_results(tmp_path, "fp64", ids, tmp_path), reference, 1e-7 if "loss" in name else 1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_as_close_to_fp32_as_transformers_in_bf16(family, tmp_path):
    model = random_model(family, "plain", torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    theirs = reference_results(reference_model(tmp_path, torch.bfloat16), ids)
    exact = reference_results(reference_model(tmp_path), ids)
    ours = our_results(tmp_path, "bf16", ids, tmp_path)
    assert ours["logits"].dtype == torch.bfloat16 and ours["loss"].dtype == torch.float32
    for result, expected in exact.items():
        assert relative_error(ours[result], expected) <= 2 * relative_error(theirs[result], expected) + 1e-3, result


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_loss_has_the_same_gradients(family, tmp_path):
    model = random_model(family, "plain")
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    reference = reference_results(model, ids)
    del reference["logits"]
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path, None, None, "fused"), reference, FP32)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_folders_load_in_transformers(family, tmp_path):
    model = random_model(family, "plain")
    source, target = tmp_path / "source", tmp_path / "target"
    model.save_pretrained(source)
    check_tool("model_resave", source, "fp32", target, 30000)
    assert len(list(target.glob("model*.safetensors"))) > 1
    assert_same_model(target, model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch,sequence", [(1, 64), (3, 5)])
def test_sequences_longer_and_shorter_than_windows(family, batch, sequence, tmp_path):
    model = random_model(family, "plain", torch.float64)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config, batch, sequence)
    with transformers_in_double(model):
        reference = reference_results(model, ids)
    assert_same_results(our_results(tmp_path, "fp64", ids, tmp_path), reference, 1e-11)


def positions_in_documents(ids, end):
    """The position of each token in its document, by which transformers knows documents that share a sequence."""
    positions = torch.zeros_like(ids)
    for sequence, row in zip(ids, positions, strict=True):
        position = 0
        for i, token in enumerate(sequence):
            row[i] = position
            position = 0 if token == end else position + 1
    return positions


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_are_those_of_transformers(family, tmp_path):
    model = random_model(family, "plain", torch.float64)
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config, 1, 23)
    ids[0, 4], ids[0, 5], ids[0, 16] = 1, 1, 1
    with transformers_in_double(model):
        reference = reference_results(model, ids, position_ids=positions_in_documents(ids, 1), use_cache=False)
        whole = reference_results(model, ids)
    ours = run_forward(tmp_path, "fp64", {"input_ids": ids, "document_ends": torch.tensor([1])}, tmp_path)
    assert_same_results(ours, reference, 1e-11)
    assert relative_error(whole["logits"], reference["logits"]) > 1e-6


def test_windows_in_several_blocks_of_queries(tmp_path):
    config = type(config_of("gemma2"))(**{**config_of("gemma2").to_dict(), "max_position_embeddings": 400})
    for window in (6, 150):
        config.sliding_window = window
        model = model_support.random_model(decoder_from, config, 3)
        model.save_pretrained(tmp_path)
        ids = random_ids(config, 1, 301)
        assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), FP32)


def to_older_spelling_of_layer_types(config):
    """The rotary embeddings of Gemma 3, as its published folders have them."""
    ropes = config.pop("rope_parameters")
    config["rope_theta"] = ropes["full_attention"].pop("rope_theta")
    config["rope_scaling"] = ropes["full_attention"]
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    del config["layer_types"]
    config["sliding_window_pattern"] = 6


def test_older_folders_of_gemma3(tmp_path):
    model = random_model("gemma3_text", "ropes")
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, to_older_spelling_of_layer_types)
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), FP32)


@pytest.mark.parametrize("spelling", ["su", "yarn"])
def test_older_folders_of_phi3(spelling, tmp_path):
    def to_older_spelling(config):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = {"type": spelling, **{key: rope[key] for key in ("short_factor", "long_factor")}}

    model = random_model("phi3", "longrope")
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, to_older_spelling)
    ids = random_ids(model.config)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(model, ids), FP32)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_of_published_configs_may_be_absent(family, tmp_path):
    """Each key that may be left out has the default of transformers."""
    model = random_model(family, "plain")
    model.save_pretrained(tmp_path)
    ids = random_ids(model.config)
    kept = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    kept |= {"model_type", "architectures", "num_key_value_heads", "head_dim", "pad_token_id", "num_experts"}
    kept |= {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}
    optional = [key for key in model.config.to_dict() if key not in kept]
    edit_config(tmp_path, lambda config: [config.pop(key, None) for key in optional])
    if family == "glm4":  # its default ties nothing, and its heads are given
        assert "attention_bias" in optional
    tied = type(model.config)().tie_word_embeddings
    if tied != model.config.tie_word_embeddings:
        edit_config(tmp_path, lambda config: config.update(tie_word_embeddings=False))
    reference = reference_model(tmp_path)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path), reference_results(reference, ids), FP32)


REFUSED = {
    "unknown key": ("llama", {"attention_sinks": 4}, ["attention_sinks is 4", "llama"]),
    "unknown rope": ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["dynamic", "yarn"]),
    "key of no rope": ("qwen3", {"rope_parameters": {"rope_type": "default", "sections": 3}}, ["sections is 3"]),
    "window without a length": (
        "ministral",
        {"sliding_window": None, "layer_types": ["sliding_attention"] * 3},
        ["layer_types", "sliding_window is null"],
    ),
    "types of other layers": ("gemma2", {"layer_types": ["full_attention"]}, ["layer_types", "a list of 3"]),
    "layer types of mistral": ("mistral", {"layer_types": ["full_attention"] * 3}, ["layer_types", "ministral"]),
    "attention both ways": ("gemma", {"use_bidirectional_attention": True}, ["use_bidirectional_attention is true"]),
    "a cap that transformers leaves out": ("gemma3_text", {"attn_logit_softcapping": 5.0}, ["attn_logit_softcapping"]),
    "divisors of other pairs": (
        "phi3",
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        ["short_factor", "a list of 4 numbers"],
    ),
    "an odd part of a head": ("glm4", {"rope_parameters": {"partial_rotary_factor": 0.25}}, ["3 of 12", "even"]),
    "part of a head": ("olmo2", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5"]),
    "one rope for two types of layers": ("olmo3", {"rope_parameters": {"rope_type": "default"}}, ["rope_type"]),
    "too few layers": ("smollm3", {"no_rope_layers": [1]}, ["no_rope_layers", "each of the 3 layers"]),
    "no division by zero": ("granite", {"logits_scaling": 0}, ["logits_scaling is 0"]),
    "quantized": ("qwen2", {"quantization_config": {"bits": 4}}, ["quantization_config"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_configs_that_are_refused(case, tmp_path):
    family, changes, words = REFUSED[case]
    if family == "llama":
        from llama_configs import CONFIGS

        model = AutoModelForCausalLM.from_config(CONFIGS["plain"])
    else:
        model = random_model(family, "plain")
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, lambda config: config.update(changes))
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1
    for word in words:
        assert word in result.stderr, result.stderr

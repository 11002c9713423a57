"""Our T5 against transformers: logits, loss, gradients, and folders that go both ways."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5LayerNorm

import model_support
from model_support import (
    assert_loads,
    assert_same_results,
    check_tool,
    edit_config,
    edit_tensors,
    names_in,
    our_results,
    random_ids,
    reference_results,
    relative_error,
    run_tool,
)

# Heads of a width that is not d_model / num_heads; few enough buckets that sequences of 29 tokens reach the last one.
SMALL = dict(
    vocab_size=101,
    d_model=48,
    d_kv=7,
    d_ff=76,
    num_layers=2,
    num_heads=5,
    dropout_rate=0.0,
    relative_attention_num_buckets=10,
    relative_attention_max_distance=21,
    decoder_start_token_id=0,
)

CONFIGS = {
    name: T5Config(**{**SMALL, **changes})
    for name, changes in {
        "tied": {},
        # The name that transformers has for a head that is tied all the same.
        "unscaled": {"tie_word_embeddings": False},
        "untied": {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
        "untied_and_scaled": {"tie_word_embeddings": False, "scale_decoder_outputs": True},
        "gated_gelu": {"feed_forward_proj": "gated-gelu"},
        "gated_silu": {"feed_forward_proj": "gated-silu"},
        "gelu": {"feed_forward_proj": "gelu"},
        "more_decoders": {"num_layers": 1, "num_decoder_layers": 3},
        "fewer_decoders": {"num_layers": 3, "num_decoder_layers": 1, "num_heads": 1},
        "odd_buckets": {"relative_attention_num_buckets": 7, "relative_attention_max_distance": 4},
        "default_buckets": {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
        "other_start": {"decoder_start_token_id": 17, "pad_token_id": 5},
        "large_epsilon": {"layer_norm_epsilon": 0.1},
    }.items()
}
# fp32: what the order of additions changes, relative to the norm of a tensor; several times what is seen.
TOLERANCE = 1e-5


def random_model(name, dtype=torch.float32):
    """Attention scores are of a size at which attention is far from uniform, and biases matter."""
    model = model_support.random_model(T5ForConditionalGeneration, CONFIGS[name], sum(map(ord, name)))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".q.weight"):
                parameter *= 3
            if "relative_attention_bias" in parameter_name:
                parameter.copy_(torch.randn_like(parameter))
        if name.startswith("untied"):
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model.to(dtype)


def save(model, name, folder):
    model.save_pretrained(folder)
    if name.startswith("untied"):  # transformers writes that they are tied, and sees that they differ when it loads
        edit_config(folder, lambda config: config.update(tie_word_embeddings=False))


def random_labels(config, batch=2):
    return random_ids(config, batch, sequence=23).flip(1)


def results(name, folder, dtype="fp32", attention_mask=None, change_labels=lambda labels: labels):
    """Ours and the reference's."""
    torch_dtype = {"fp32": torch.float32, "fp64": torch.float64}[dtype]
    model = random_model(name, torch_dtype)
    save(model, name, folder)
    batch = 2 if attention_mask is None else len(attention_mask)
    ids, labels = random_ids(model.config, batch), change_labels(random_labels(model.config, batch))
    reference = reference_results(model, ids, labels, attention_mask)
    return our_results(folder, dtype, ids, folder, labels, attention_mask), reference


def padded(batch=2, sequence=29):
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[0, 20:] = 0
    mask[1, :3] = 0
    return mask


@pytest.mark.parametrize("name", ["tied", "untied", "more_decoders"])
def test_fp32_equals_transformers(name, tmp_path):
    assert_same_results(*results(name, tmp_path), TOLERANCE)


def test_masks_of_padded_sources(tmp_path):
    """One sample is all padding."""
    mask = padded(batch=3)
    mask[2] = 0
    ours, reference = results("gated_gelu", tmp_path, attention_mask=mask)
    assert_same_results(ours, reference, TOLERANCE)
    without, _ = results("gated_gelu", tmp_path, attention_mask=torch.ones_like(mask))
    assert relative_error(without["logits"], ours["logits"]) > 0.01


def test_ignored_labels(tmp_path):
    """They are read as padding."""

    def ignore(labels):
        return torch.where(torch.arange(23) % 3 == 0, -100, labels)

    assert_same_results(*results("other_start", tmp_path, change_labels=ignore), TOLERANCE)


def double_norm(self, hidden_states):
    """T5LayerNorm without its rounding of the variance to fp32."""
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("untied", "gated_gelu", "more_decoders")])
def test_fp64_equals_transformers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(T5LayerNorm, "forward", double_norm)
    assert_same_results(*results(name, tmp_path, "fp64", padded()), 1e-11)


def test_bf16_is_as_close_to_fp32_as_transformers_in_bf16(tmp_path):
    model = random_model("gated_gelu", torch.bfloat16)
    save(model, "gated_gelu", tmp_path)
    ids, labels = random_ids(model.config), random_labels(model.config)
    exact = reference_results(model.float(), ids, labels, padded())
    theirs = reference_results(model.to(torch.bfloat16), ids, labels, padded())
    ours = our_results(tmp_path, "bf16", ids, tmp_path, labels, padded())
    assert ours["logits"].dtype == torch.bfloat16 and ours["loss"].dtype == torch.float32
    for result, expected in exact.items():
        assert relative_error(ours[result], expected) <= 2 * relative_error(theirs[result], expected) + 1e-3, result


def test_keys_that_early_configs_lack(tmp_path):
    """With the defaults of transformers; dropout and start token apart."""
    model = random_model("default_buckets")
    model.save_pretrained(tmp_path)
    optional = [
        "num_decoder_layers",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
        "dense_act_fn",
        "feed_forward_proj",
        "is_gated_act",
        "layer_norm_epsilon",
        "initializer_factor",
        "pad_token_id",
        "eos_token_id",
        "scale_decoder_outputs",
        "tie_word_embeddings",
        "is_decoder",
        "is_encoder_decoder",
    ]
    edit_config(tmp_path, lambda config: [config.pop(key, None) for key in optional] and config.update(n_positions=512))
    ids, labels = random_ids(model.config), random_labels(model.config)
    reference = reference_results(T5ForConditionalGeneration.from_pretrained(tmp_path), ids, labels)
    assert_same_results(our_results(tmp_path, "fp32", ids, tmp_path, labels), reference, TOLERANCE)


UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


@pytest.mark.parametrize("names", [["lm_head.weight"], ["decoder.embed_tokens.weight", "encoder.embed_tokens.weight"]])
def test_names_of_the_shared_embedding(names, tmp_path):
    """Any of them may be in a folder, and beside them a weight that early folders have."""
    model = random_model("tied")
    source, target = tmp_path / "source", tmp_path / "target"
    model.save_pretrained(source)

    def rename(tensors):
        embedding = tensors.pop("shared.weight")
        return {**tensors, **{name: embedding.clone() for name in names}, UNUSED: torch.ones(10, 5)}

    edit_tensors(source, rename)
    ids, labels = random_ids(model.config), random_labels(model.config)
    reference = reference_results(model, ids, labels)
    assert_same_results(our_results(source, "fp32", ids, tmp_path, labels), reference, TOLERANCE)
    check_tool("model_resave", source, "fp32", target, 10**9)
    assert_loads(target, model, input_ids=ids, labels=labels)


@pytest.mark.parametrize("name, max_shard_bytes", [("tied", 40000), ("unscaled", 10**9), ("untied", 10**9)])
def test_saved_folders_load_in_transformers(name, max_shard_bytes, tmp_path):
    model = random_model(name)
    source, target, theirs = tmp_path / "source", tmp_path / "target", tmp_path / "theirs"
    save(model, name, source)
    check_tool("model_resave", source, "fp32", target, max_shard_bytes)
    files = list(target.glob("model*.safetensors"))
    assert (len(files) == 1) == (max_shard_bytes == 10**9)
    inputs = dict(input_ids=random_ids(model.config), labels=random_labels(model.config))
    assert_loads(target, model, **inputs)
    assert ("lm_head.weight" in names_in(target)) == name.startswith("untied")
    T5ForConditionalGeneration.from_pretrained(target).save_pretrained(theirs)
    assert names_in(target) == names_in(theirs)


def test_heads_that_differ_from_tied_embeddings_are_refused(tmp_path):
    """transformers takes them for untied, and says so."""
    random_model("untied").save_pretrained(tmp_path / "source")
    result = run_tool("model_resave", tmp_path / "source", "fp32", tmp_path / "target", 10**9)
    assert result.returncode == 1
    assert "lm_head.weight" in result.stderr and "tie_word_embeddings" in result.stderr

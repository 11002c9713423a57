"""Small random configs of every family of decoders, which together cover every variant of each."""

import copy

import transformers

from model_support import random_ids, relative_error

_SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 68,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # Large enough that attention is not nearly uniform, so that rotation errors show.
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}

THETA = {"rope_type": "default", "rope_theta": 123456.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 16}
YARN_EVERYTHING = {
    **YARN,
    "attention_factor": None,
    "beta_fast": 3.5,
    "beta_slow": 1.5,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
    "truncate": False,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def longrope(pairs, original, **changes):
    """Every pair of elements has divisors of its own, one for short sequences and one for long ones."""
    return {
        "rope_type": "longrope",
        "rope_theta": 7000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.7 * i for i in range(pairs)],
        "original_max_position_embeddings": original,
        **changes,
    }


def _family(model_type, base, **variants):
    """{name: config} of the family's base config, itself named "plain", and of its variants."""
    config_class = type(transformers.AutoConfig.for_model(model_type))
    variants = {"plain": {}, **variants}
    return {name: config_class(**{**_SMALL, **base, **changes}) for name, changes in variants.items()}


_WINDOW_OF_ALL = {"sliding_window": 7}

FAMILIES = {
    "qwen2": _family(
        "qwen2",
        {},
        tied={"tie_word_embeddings": True},
        window={"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
        layer_types={"use_sliding_window": True, "sliding_window": 5, "layer_types": [SLIDING, FULL, SLIDING]},
        unused_window={"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0},
        yarn={"rope_parameters": YARN},
        yarn_everything={"rope_parameters": YARN_EVERYTHING},
        padding={"pad_token_id": 7},
    ),
    "qwen3": _family(
        "qwen3",
        {"head_dim": 10},
        attention_bias={"attention_bias": True},
        window={"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        tied={"tie_word_embeddings": True, "num_key_value_heads": 6},
        rope_theta={"rope_parameters": THETA},
        longrope={"rope_parameters": longrope(5, 16)},
        longrope_short={"rope_parameters": longrope(5, 48, factor=3.0)},
        heads_that_do_not_divide={"num_attention_heads": 5, "num_key_value_heads": 5},
    ),
    "mistral": _family(
        "mistral",
        {"sliding_window": None},
        window=_WINDOW_OF_ALL,
        window_of_two={"sliding_window": 2},
        long_window={"sliding_window": 500},
        head_dim={"head_dim": 14, "sliding_window": 3},
        gelu={"hidden_act": "gelu"},
        llama3={"rope_parameters": LLAMA3},
    ),
    "ministral": _family(
        "ministral",
        {"sliding_window": 6, "head_dim": 12},
        layer_types={"layer_types": [SLIDING, FULL, FULL]},
        yarn={"rope_parameters": YARN},
    ),
    "smollm3": _family(
        "smollm3",
        {"tie_word_embeddings": False},
        tied={"tie_word_embeddings": True},
        interval={"no_rope_layer_interval": 2},
        layers={"no_rope_layers": [0, 1, 0]},
        biases={"attention_bias": True, "mlp_bias": True},
        window={"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [0, 1, 0]},
        linear={"rope_parameters": LINEAR},
    ),
    "granite": _family(
        "granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.0625,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
        defaults={
            "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        biases={"attention_bias": True, "mlp_bias": True},
        tied={"tie_word_embeddings": True},
    ),
    "gemma": _family(
        "gemma",
        {"head_dim": 12},
        untied={"tie_word_embeddings": False},
        wide_heads={"head_dim": 16, "num_key_value_heads": 1, "attention_bias": True},
        legacy_gelu={"hidden_act": "gelu"},
        padding={"pad_token_id": 0},
    ),
    "gemma2": _family(
        "gemma2",
        {"head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 20},
        untied={"tie_word_embeddings": False, "attention_bias": True},
        small_caps={"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
        no_caps={"attn_logit_softcapping": None, "final_logit_softcapping": None},
        layer_types={"layer_types": [FULL, SLIDING, SLIDING]},
        all_keys_shared={"num_key_value_heads": 1},
    ),
    "gemma3_text": _family(
        "gemma3_text",
        {"head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 20, "num_hidden_layers": 7},
        untied={"tie_word_embeddings": False, "attention_bias": True},
        layer_types={"layer_types": [FULL, SLIDING] * 3 + [FULL]},
        final_cap={"final_logit_softcapping": 2.0},
        ropes={
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 300.0},
            }
        },
    ),
    "phi3": _family(
        "phi3",
        {},
        window={"sliding_window": 7},
        partial={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
        longrope={"rope_parameters": longrope(4, 16), "original_max_position_embeddings": 16},
        longrope_short={"rope_parameters": longrope(4, 32), "original_max_position_embeddings": 32},
        partial_longrope={
            "rope_parameters": longrope(3, 16, partial_rotary_factor=0.75),
            "original_max_position_embeddings": 16,
        },
        tied={"tie_word_embeddings": True},
    ),
    "olmo2": _family(
        "olmo2",
        {},
        attention_bias={"attention_bias": True},
        own_key_heads={"num_key_value_heads": 6},
        tied={"tie_word_embeddings": True},
        rope_theta={"rope_parameters": THETA},
    ),
    "olmo3": _family(
        "olmo3",
        {"sliding_window": 6, "num_hidden_layers": 4},
        layer_types={"layer_types": [FULL, SLIDING, SLIDING, FULL]},
        attention_bias={"attention_bias": True},
        yarn={"rope_parameters": {FULL: YARN, SLIDING: {"rope_type": "default", "rope_theta": 500.0}}},
    ),
    "glm4": _family(
        "glm4",
        {"head_dim": 12},
        no_bias={"attention_bias": False},
        whole_heads={"rope_parameters": {**THETA, "partial_rotary_factor": 1.0}},
        tied={"tie_word_embeddings": True},
    ),
    "mixtral": _family(
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2},
        window={"sliding_window": 7},
        all_experts={"num_local_experts": 3, "num_experts_per_tok": 3},
        router_loss={"output_router_logits": True, "router_aux_loss_coef": 0.7},
        many_experts={"num_local_experts": 90, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": _family(
        "qwen2_moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 22,
            "shared_expert_intermediate_size": 30,
        },
        renormalized={"norm_topk_prob": True, "qkv_bias": False},
        router_loss={"output_router_logits": True, "router_aux_loss_coef": 0.7},
        sparse_step={"decoder_sparse_step": 2},
        dense_layers={"mlp_only_layers": [0, 2]},
        window={"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    ),
    "qwen3_moe": _family(
        "qwen3_moe",
        {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 22, "head_dim": 10},
        renormalized={"norm_topk_prob": True, "attention_bias": True},
        router_loss={"output_router_logits": True, "mlp_only_layers": [1]},
        window={"use_sliding_window": True, "sliding_window": 6},
    ),
    "olmoe": _family(
        "olmoe",
        {"num_experts": 6, "num_experts_per_tok": 4},
        renormalized={"norm_topk_prob": True},
        clipped={"clip_qkv": 0.8, "attention_bias": True},
        router_loss={"output_router_logits": True, "router_aux_loss_coef": 0.3},
    ),
}

CASES = [(family, name) for family, configs in FAMILIES.items() for name in configs]


def config_of(family, name="plain"):
    """A copy: transformers notes the dtype of the last model in a config."""
    return copy.deepcopy(FAMILIES[family][name])


def decoder_from(config):
    """A model of transformers whose experts are plain products, in every dtype and of every size."""
    return transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager")


def assert_same_model(folder, model, tolerance=0):
    """transformers loads the folder without a word, and the same weights, up to a part of their norm."""
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, experts_implementation="eager"
    )
    assert not any(report.values()), report
    loaded_state, state = loaded.state_dict(), model.state_dict()
    assert loaded_state.keys() == state.keys()
    assert all(relative_error(loaded_state[name], value) <= tolerance for name, value in state.items())
    ids = random_ids(model.config)
    assert relative_error(loaded.eval()(ids).logits, model.eval()(ids).logits) <= max(1e-6, 10 * tolerance)

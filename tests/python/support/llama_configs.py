"""Small random Llama configs that together cover every variant of the model."""

from transformers import LlamaConfig

_SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 68,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 64,
    # Large enough that attention is not nearly uniform, so that rotation errors show.
    "initializer_range": 0.3,
}

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _config(**changes):
    return LlamaConfig(**{**_SMALL, **changes})


CONFIGS = {
    "plain": _config(),
    "grouped_queries": _config(num_key_value_heads=2),
    "one_key_value_head": _config(num_key_value_heads=1),
    "wide_heads": _config(head_dim=14, num_key_value_heads=3),
    "narrow_heads": _config(head_dim=4, num_key_value_heads=2, num_hidden_layers=1),
    "attention_bias": _config(attention_bias=True, num_key_value_heads=2),
    "mlp_bias": _config(mlp_bias=True),
    "tied": _config(tie_word_embeddings=True, num_key_value_heads=3),
    "tied_with_everything": _config(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=10, rope_parameters=_LLAMA3
    ),
    "rope_theta": _config(rope_parameters={"rope_type": "default", "rope_theta": 123456.0}),
    "llama3": _config(rope_parameters=_LLAMA3, num_key_value_heads=2),
    "linear_rope": _config(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "gelu": _config(hidden_act="gelu"),
    "gelu_tanh": _config(hidden_act="gelu_pytorch_tanh"),
    "relu": _config(hidden_act="relu"),
    "padding": _config(pad_token_id=7, tie_word_embeddings=False),
    "padding_tied": _config(pad_token_id=100, tie_word_embeddings=True),
    "large_epsilon": _config(rms_norm_eps=0.1, num_hidden_layers=3),
}

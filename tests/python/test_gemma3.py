"""The text model of folders of Gemma 3 that also take images."""

import json

import pytest
import torch
import transformers

from decoder_configs import assert_same_model, config_of
from model_support import (
    assert_same_results,
    check_tool,
    edit_config,
    our_results,
    random_ids,
    random_model,
    reference_results,
    run_tool,
)

VISION = dict(
    hidden_size=16, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
)


@pytest.fixture
def whole():
    """A model with images."""
    tokens = dict(image_token_index=100, boi_token_index=98, eoi_token_index=99)
    text = config_of("gemma3_text").to_dict()
    config = transformers.Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4, **tokens)
    return random_model(transformers.Gemma3ForConditionalGeneration, config, 5)


def text_of(whole):
    """The text model alone, with the same weights."""
    text = transformers.Gemma3ForCausalLM(whole.config.text_config)
    text.model.load_state_dict(whole.model.language_model.state_dict())
    text.tie_weights()
    return text


@pytest.mark.parametrize("original", [True, False])
def test_the_text_model_is_read_and_trained(original, whole, tmp_path):
    source = tmp_path / "source"
    whole.save_pretrained(source, save_original_format=original)
    text = text_of(whole)
    ids = random_ids(text.config)
    assert_same_results(our_results(source, "fp32", ids, tmp_path), reference_results(text, ids), 1e-5)
    config = {
        "model_path": str(source),
        "dataset": "dummy:8",
        "max_seq_length": 16,
        "train_batch_size": 2,
        "max_steps": 1,
        "dtype": "fp32",
        "learning_rate": 0.0,
        "weight_decay": 0.0,
        "save_final": True,
        "output_dir": str(tmp_path / "output"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_tool("fsdp", "train", "--config-path", tmp_path / "config.json", "--nproc-per-node", 2)
    saved = json.loads((tmp_path / "output/final/config.json").read_text())
    assert saved["model_type"] == "gemma3_text" and saved["architectures"] == ["Gemma3ForCausalLM"]
    assert_same_model(tmp_path / "output/final", text)


def test_keys_that_published_folders_leave_out(whole, tmp_path):
    """Those of the text model, which has the defaults of transformers."""
    whole.save_pretrained(tmp_path)
    edit_config(tmp_path, lambda config: config["text_config"].pop("num_attention_heads"))
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1 and "[96, 48]" in result.stderr, result.stderr  # 8 heads of 12, where there are 6


def test_configs_without_a_text_model_are_refused(whole, tmp_path):
    whole.save_pretrained(tmp_path)
    edit_config(tmp_path, lambda config: config["text_config"].update(model_type="gemma2"))
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1 and "text_config: model_type" in result.stderr, result.stderr
    edit_config(tmp_path, lambda config: config.pop("text_config"))
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1 and "text_config is missing" in result.stderr, result.stderr


def test_tensors_of_no_part_are_refused(whole, tmp_path):
    whole.register_parameter("left_over", torch.nn.Parameter(torch.ones(3)))
    whole.save_pretrained(tmp_path)
    result = run_tool("model_forward", tmp_path, "fp32", "none", "none")
    assert result.returncode == 1 and "left_over" in result.stderr, result.stderr

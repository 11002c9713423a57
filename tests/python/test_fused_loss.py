"""The fused head and loss of our language models against transformers, as each model's tests compare the plain one."""

import pytest
import torch

import test_gpt2
import test_llama
import test_t5
from model_support import assert_same_results, our_results, random_ids, reference_results, relative_error


def labels_of(model):
    ids = random_ids(model.config)
    return torch.where(torch.arange(ids.shape[1]) % 5 == 0, -100, ids)


def without_logits(results):
    return {name: value for name, value in results.items() if name != "logits"}


@pytest.mark.parametrize(
    "module,name",
    [
        (test_llama, "grouped_queries"),
        (test_llama, "tied"),
        (test_gpt2, "tied"),
        (test_gpt2, "untied"),
        (test_t5, "tied"),
        (test_t5, "untied_and_scaled"),
    ],
)
def test_fp32_equals_transformers(module, name, tmp_path):
    model = module.random_model(name)
    getattr(module, "save", lambda model, name, folder: model.save_pretrained(folder))(model, name, tmp_path)
    ids, labels = random_ids(model.config), labels_of(model)
    ours = our_results(tmp_path, "fp32", ids, tmp_path, labels, None, "fused")
    assert_same_results(ours, without_logits(reference_results(model, ids, labels)), 1e-5)


def test_bf16_is_as_close_to_fp32_as_transformers_in_bf16(tmp_path):
    model = test_gpt2.random_model("tied", torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids, labels = random_ids(model.config), labels_of(model)
    exact = without_logits(reference_results(model.float(), ids, labels))
    theirs = reference_results(model.to(torch.bfloat16), ids, labels)
    ours = our_results(tmp_path, "bf16", ids, tmp_path, labels, None, "fused")
    assert ours.keys() == exact.keys()
    for result, expected in exact.items():
        assert relative_error(ours[result], expected) <= 2 * relative_error(theirs[result], expected) + 1e-3, result

"""Our RegNet against transformers, our DeepViT against the paper's formula in PyTorch: logits, loss, gradients, running
statistics, FLOPs, and folders that go both ways."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import RegNetConfig, RegNetForImageClassification

import model_support
from model_support import assert_same_results, check_tool, relative_error, run_forward, run_tool
from torch_deepvit import DeepViT

REGNETS = {
    name: RegNetConfig(
        **{
            **dict(embedding_size=10, hidden_sizes=[12, 20, 28], depths=[1, 3, 2], groups_width=4, num_labels=7),
            **changes,
        }
    )
    for name, changes in {
        "y": {},
        "x": {"layer_type": "x"},
        "not_downsampled": {"downsample_in_first_stage": False, "hidden_sizes": [10, 20, 28], "groups_width": 64},
        "one_stage": {"hidden_sizes": [22], "depths": [1], "groups_width": 11, "num_channels": 1, "num_labels": 2},
        "depthwise_silu": {"groups_width": 1, "layer_type": "x", "hidden_act": "silu"},
        "gelu": {"hidden_act": "gelu"},
    }.items()
}

DEEPVITS = {
    name: {
        **dict(
            model_type="deepvit",
            architectures=["DeepViT"],
            image_size=35,
            patch_size=7,
            num_channels=3,
            hidden_size=36,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=50,
            hidden_act="gelu",
            qkv_bias=True,
            layer_norm_eps=1e-5,
            num_labels=7,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        **changes,
    }
    for name, changes in {
        "deepvit": {},
        "one_head": {"num_attention_heads": 1},
        "without_bias": {"qkv_bias": False, "num_hidden_layers": 1, "num_channels": 1},
        "one_patch_relu": {"patch_size": 35, "layer_norm_eps": 0.1, "hidden_act": "relu"},
    }.items()
}
NAMES = [*REGNETS, *DEEPVITS]
# What the order of additions changes, relative to the norm of a tensor; several times what is seen. Gradients of Theta
# are small differences, as batch norm undoes its scale: with one head all of it.
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-11}
TOLERANCE_OF_THETA = {"fp32": 1e-3, "fp64": 1e-11}


def random_model(name, dtype=torch.float32):
    make, config = (DeepViT, DEEPVITS[name]) if name in DEEPVITS else (RegNetForImageClassification, REGNETS[name])
    model = model_support.random_model(make, config, sum(map(ord, name)), dtype)
    for buffer_name, buffer in model.named_buffers():  # as after training
        if buffer_name.endswith("running_mean"):
            buffer.normal_(0, 0.2)
        elif buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
        else:
            buffer.fill_(5)
    return model


def images_for(name, dtype=torch.float32):
    """Pixels and labels. RegNets take images of any size."""
    channels, height, width, classes = (
        (DEEPVITS[name]["num_channels"], 35, 35, 7)
        if name in DEEPVITS
        else (REGNETS[name].num_channels, 37, 26, REGNETS[name].num_labels)
    )
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randn(5, channels, height, width, generator=generator)
    return {"pixel_values": pixels.to(dtype), "labels": torch.randint(0, classes, (5,), generator=generator)}


def logits_of(model, pixels):
    return model(pixels) if isinstance(model, DeepViT) else model(pixels).logits


def reference_results(model, inputs, mode):
    model.train(mode == "train")
    with FlopCounterMode(display=False) as counter:
        logits = logits_of(model, inputs["pixel_values"])
    loss = torch.nn.functional.cross_entropy(logits, inputs["labels"])
    if not isinstance(model, DeepViT):
        assert torch.equal(loss, model.loss_function(inputs["labels"], logits, model.config))
    loss.backward()
    return {
        "loss": loss.detach(),
        "logits": logits.detach(),
        **{"grad." + name: parameter.grad for name, parameter in model.named_parameters()},
        **{"buffer." + name: buffer for name, buffer in model.named_buffers()},
        "flops": torch.tensor(3 * counter.get_total_flops() / len(logits), dtype=torch.float64),
    }


def check_equals_reference(name, mode, dtype, folder):
    torch_dtype = {"fp32": torch.float32, "fp64": torch.float64}[dtype]
    model = random_model(name, torch_dtype)
    model.save_pretrained(folder)
    inputs = images_for(name, torch_dtype)
    ours = run_forward(folder, dtype, inputs, folder, *(["eval"] if mode == "eval" else []))
    reference = reference_results(model, inputs, mode)
    ours_flops, flops = ours.pop("flops"), reference.pop("flops")
    assert ours_flops == flops or name == "one_head"  # in which PyTorch counts no product with Theta
    tracked = [value for key, value in ours.items() if key.endswith("num_batches_tracked")]
    assert tracked and all(value == (6 if mode == "train" else 5) for value in tracked)
    theta = [result for result in reference if result.endswith("theta")]
    assert_same_results(
        {result: ours.pop(result) for result in theta},
        {result: reference.pop(result) for result in theta},
        TOLERANCE_OF_THETA[dtype],
    )
    assert_same_results(ours, reference, TOLERANCE[dtype])


@pytest.mark.parametrize("name, mode", [*[(name, "train") for name in NAMES], ("y", "eval"), ("deepvit", "eval")])
def test_fp32_equals_reference(name, mode, tmp_path):
    check_equals_reference(name, mode, "fp32", tmp_path)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ["y", "deepvit"])
def test_fp64_equals_reference(name, mode, tmp_path):
    check_equals_reference(name, mode, "fp64", tmp_path)


@pytest.mark.parametrize("name, max_shard_bytes", [("y", 10**9), ("y", 20000), ("x", 10**9)])
def test_saved_folders_load_in_transformers(name, max_shard_bytes, tmp_path):
    model = random_model(name)
    source, target = tmp_path / "source", tmp_path / "target"
    model.save_pretrained(source)
    check_tool("model_resave", source, "fp32", target, max_shard_bytes)
    assert (len(list(target.glob("model*.safetensors"))) == 1) == (max_shard_bytes == 10**9)
    loaded, report = RegNetForImageClassification.from_pretrained(target, output_loading_info=True)
    assert not any(report.values()), report
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    pixels = images_for(name)["pixel_values"]
    # The weights are the same to the bit; a convolution's kernel may depend on where they lie in memory.
    torch.testing.assert_close(logits_of(loaded, pixels), logits_of(model.eval(), pixels), rtol=1e-5, atol=1e-6)


def test_folders_of_the_model_without_its_prefix(tmp_path):
    model = random_model("y")
    model.save_pretrained(tmp_path)
    model_support.edit_tensors(
        tmp_path, lambda tensors: {key.removeprefix("regnet."): value for key, value in tensors.items()}
    )
    inputs = images_for("y")
    ours = run_forward(tmp_path, "fp32", inputs, tmp_path)
    assert_same_results(ours, reference_results(model, inputs, "train"), TOLERANCE["fp32"])


def test_missing_statistics_are_named(tmp_path):
    random_model("y").save_pretrained(tmp_path)
    model_support.edit_tensors(
        tmp_path, lambda tensors: {key: value for key, value in tensors.items() if not key.endswith("running_var")}
    )
    failed = run_tool("model_resave", tmp_path, "fp32", tmp_path / "target", 10**9)
    assert failed.returncode == 1
    assert 'missing tensor "regnet.embedder.embedder.normalization.running_var"' in failed.stderr


@pytest.mark.parametrize("name", ["y", "deepvit"])
def test_bf16_is_as_close_to_fp32_as_the_reference_in_bf16(name, tmp_path):
    model = random_model(name, torch.bfloat16)
    model.save_pretrained(tmp_path)
    inputs = images_for(name, torch.bfloat16)
    ours = run_forward(tmp_path, "bf16", inputs, tmp_path, "eval")
    theirs = reference_results(model, inputs, "eval")
    model.zero_grad()
    exact = reference_results(model.float(), {**inputs, "pixel_values": inputs["pixel_values"].float()}, "eval")
    assert ours["logits"].dtype == torch.bfloat16 and ours["loss"].dtype == torch.float32
    for result in ("logits", "grad." + list(dict(model.named_parameters()))[0]):
        limit = 2 * relative_error(theirs[result], exact[result]) + 1e-3
        assert relative_error(ours[result], exact[result]) <= limit, result

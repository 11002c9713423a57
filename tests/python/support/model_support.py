"""Helpers of the tests of models: references of transformers, and the programs that run ours."""

import atexit
import functools
import json
import os
import pathlib
import subprocess
import tempfile

import safetensors
import safetensors.torch
import torch

TOOLS = pathlib.Path(os.environ["FSDP_BUILD_DIR"])


def random_model(make, config, seed, dtype=torch.float32):
    """make(config), for saving in `dtype`. Its own results are those of transformers only in fp32: to() rounds Llama's
    rotation angles."""
    torch.manual_seed(seed)
    model = make(config)
    with torch.no_grad():  # what transformers initialises to constants is not worth comparing
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (0 if name.endswith("bias") else 1))
    return model.to(dtype)


def random_ids(config, batch=2, sequence=29):
    return torch.randint(0, config.vocab_size, (batch, sequence), generator=torch.Generator().manual_seed(3))


def edit_config(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def edit_tensors(folder, change):
    """Replaces the folder's tensors, a dictionary, by what `change` makes of them."""
    path = folder / "model.safetensors"
    safetensors.torch.save_file(change(safetensors.torch.load_file(path)), path, metadata={"format": "pt"})


def double_loss(logits, labels, vocab_size, **_):
    """The loss of transformers without its rounding to fp32."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab_size), labels[:, 1:].reshape(-1))


# These run often: each stays in a process that has loaded LibTorch, and forks for every run.
STAYING = {"model_forward", "model_resave", "preset_facts"}


class StayingTool:
    """A test program of tests/tools/tool_main.h; it ends with this process."""

    def __init__(self, name):
        self.name = name
        self.process = subprocess.Popen(
            [TOOLS / name, "--stay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.process.communicate)

    def run(self, arguments):
        with tempfile.TemporaryDirectory() as folder:
            output, errors = pathlib.Path(folder, "stdout"), pathlib.Path(folder, "stderr")
            request = {"arguments": arguments, "stdout": str(output), "stderr": str(errors)}
            print(json.dumps(request), file=self.process.stdin, flush=True)
            status = int(self.process.stdout.readline())
            return subprocess.CompletedProcess([self.name, *arguments], status, output.read_text(), errors.read_text())


staying_tool = functools.cache(StayingTool)


def run_tool(name, *arguments):
    """Runs a test program; returns the finished process, whatever its exit status."""
    arguments = [*map(str, arguments)]
    if name in STAYING:
        return staying_tool(name).run(arguments)
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, timeout=600, check=False)


def check_tool(name, *arguments):
    result = run_tool(name, *arguments)
    assert result.returncode == 0, result.stderr
    return result


def our_results(folder, dtype, input_ids, work_folder, labels=None, attention_mask=None, *mode):
    """loss, logits (but for the mode "fused") and grad.NAME of every parameter, from our model."""
    tensors = {"input_ids": input_ids}
    if labels is not None:
        tensors["labels"] = labels
    if attention_mask is not None:
        tensors["attention_mask"] = attention_mask
    return run_forward(folder, dtype, tensors, work_folder, *mode)


def run_forward(folder, dtype, tensors, work_folder, *mode):
    """What model_forward writes for these inputs."""
    safetensors.torch.save_file(tensors, work_folder / "in.safetensors")
    check_tool("model_forward", folder, dtype, work_folder / "in.safetensors", work_folder / "out.safetensors", *mode)
    return safetensors.torch.load_file(work_folder / "out.safetensors")


def reference_results(model, input_ids, labels=None, attention_mask=None, **inputs):
    """The same from a transformers model. Parameters that share memory appear under each of their names."""
    model.eval()
    model.zero_grad()
    labels = input_ids if labels is None else labels
    output = model(input_ids=input_ids, labels=labels, attention_mask=attention_mask, **inputs)
    output.loss.backward()
    results = {"loss": output.loss.detach(), "logits": output.logits.detach()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        results["grad." + name] = parameter.grad
    return results


def relative_error(ours, reference):
    norm = reference.double().norm()
    return ((ours.double() - reference.double()).norm() / norm.clamp_min(1e-30)).item()


def assert_same_results(ours, reference, tolerance):
    """Every result within `tolerance` of the reference, relative to the norm of the tensor."""
    assert ours.keys() == reference.keys(), ours.keys() ^ reference.keys()
    errors = {name: relative_error(ours[name], reference[name]) for name in reference}
    too_large = {name: error for name, error in errors.items() if not error <= tolerance}
    assert not too_large, too_large


def assert_loads(folder, model, **inputs):
    """transformers finds exactly its own tensors in the folder, and they make the model."""
    loaded, report = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    inputs = inputs or {"input_ids": random_ids(model.config)}
    assert torch.equal(loaded(**inputs).logits, model.eval()(**inputs).logits)


def names_in(folder):
    return set().union(*(safetensors.safe_open(file, "pt").keys() for file in folder.glob("*.safetensors")))

"""The models and samples that both sides read, made once from seeds."""

import collections
import dataclasses
import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch

from comparison import torch_dhen
from torch_deepvit import DeepViT

# Of transformers, which imports a model's code, for seconds, only when it is asked for: config and model.
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "regnet": ("RegNetConfig", "RegNetForImageClassification"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
}
# Elements of a module that becomes a unit of its own, as in the trainer's wrap policy.
LARGE = 1 << 18
# No dropout: the sides would draw different numbers.
WITHOUT_DROPOUT = {"gpt2": dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), "t5": dict(dropout_rate=0.0)}


def classes_of(kind):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return [getattr(transformers, name) for name in CLASSES[kind]]


@dataclasses.dataclass(frozen=True)
class Model:
    """`length`: tokens of a sample (T5: of the source; the target has half), or height and width of an image."""

    name: str
    kind: str
    length: int
    sizes: tuple  # pairs of a key of config.json and its value

    def config(self):
        return {**dict(self.sizes), **WITHOUT_DROPOUT.get(self.kind, {})}


def model(name, kind, length, **sizes):
    return Model(name, kind, length, tuple(sizes.items()))


def file_name(spec):
    """Another one for other sizes, so that what an older call has made is not taken for it."""
    digest = hashlib.sha256(repr(spec).encode()).hexdigest()[:8]
    return f"{spec.name.replace(' ', '-')}-{digest}"


def make_folder(spec, folder):
    """Writes config.json and random fp32 weights, once; returns the folder."""
    folder = Path(folder) / file_name(spec)
    if (folder / "complete").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if spec.kind == "deepvit":
        config = {
            "model_type": "deepvit",
            "architectures": ["DeepViT"],
            "num_channels": 3,
            "hidden_act": "gelu",
            "qkv_bias": True,
            "layer_norm_eps": 1e-5,
            "dropout": 0.0,
            **spec.config(),
        }
        make_deepvit(config).save_pretrained(folder)
    elif spec.kind == "dhen":
        torch_dhen.make_folder(spec.config(), folder)
    else:
        config_class, model_class = classes_of(spec.kind)
        model_class(config_class(**spec.config())).save_pretrained(folder)
    (folder / "complete").touch()
    return folder


def make_deepvit(config):
    built = DeepViT(config)
    with torch.no_grad():
        for parameter in (built.embeddings.class_token, built.embeddings.positions):
            parameter.mul_(0.02)
    return built


def make_samples(spec, count, folder):
    """Writes a file of `count` samples, once; returns it."""
    path = Path(folder) / f"{file_name(spec)}-{count}.safetensors"
    if path.exists():
        return path
    generator = torch.Generator().manual_seed(1)
    config = spec.config()
    if spec.kind == "dhen":
        rows = torch.tensor(config["table_rows"])
        tensors = {
            "numeric": torch.randn(count, config["num_numeric_features"], generator=generator),
            "categorical": (torch.rand((count, len(rows)), generator=generator) ** 3 * rows).long(),
            "labels": torch.randint(2, (count,), generator=generator),
        }
    elif spec.kind in ("regnet", "deepvit"):
        tensors = {
            "pixel_values": torch.randn(count, 3, spec.length, spec.length, generator=generator),
            "labels": torch.randint(config["num_labels"], (count,), generator=generator),
        }
    else:
        tensors = {"input_ids": skewed(config["vocab_size"], (count, spec.length), generator)}
        if spec.kind == "t5":
            tensors["labels"] = skewed(config["vocab_size"], (count, spec.length // 2), generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, path)
    return path


def skewed(vocabulary, shape, generator):
    """Token ids of which small ones are frequent, so that there is something to learn; never 0, T5's padding."""
    return 1 + (torch.rand(shape, generator=generator) ** 3 * (vocabulary - 1)).long()


def load(folder):
    """The model of a folder in PyTorch, in training mode, in fp32."""
    config = json.loads((Path(folder) / "config.json").read_text())
    if config["model_type"] == "dhen":
        built = torch_dhen.load(folder)
    elif config["model_type"] == "deepvit":
        built = DeepViT(config)
        built.load_state_dict(safetensors.torch.load_file(Path(folder) / "model.safetensors"))
    else:
        built = classes_of(config["model_type"])[1].from_pretrained(folder, dtype=torch.float32)
        built.config.use_cache = False
    for tensor in (*built.parameters(), *built.buffers()):
        tensor.data = tensor.data.clone()  # out of the mapped file, whose memory no allocator counts
    return built.train()


def block_classes(built):
    """The classes of the modules that become units, as PretrainedModel::block_class_names has them."""
    names = {"GPT2Block", "T5Block", "RegNetYLayer", "RegNetXLayer", "Block", "DhenLayer"}
    kinds = {type(module) for module in built.modules()}
    return {kind for kind in kinds if kind.__name__ in names or kind.__name__.endswith("DecoderLayer")}


def loss_of(built, samples):
    """samples: what the file holds, of one batch."""
    if "categorical" in samples:
        logits = built(samples["numeric"], samples["categorical"])
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, samples["labels"].float())
    labels = samples.get("labels", samples.get("input_ids"))
    if "pixel_values" not in samples:
        return built(input_ids=samples["input_ids"], labels=labels).loss
    output = built(samples["pixel_values"])
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return torch.nn.functional.cross_entropy(logits.float(), labels)


def large_outside(built, blocks):
    """The modules outside of `blocks` with large parameters that no other module has: embeddings and heads, in
    order."""
    inside = {id(module) for block in blocks for module in block.modules()}
    owners = collections.Counter(
        id(parameter) for module in built.modules() for parameter in module.parameters(recurse=False)
    )

    def is_large(module):
        own = list(module.parameters(recurse=False))
        return sum(p.numel() for p in own) >= LARGE and all(owners[id(p)] == 1 for p in own)

    return [module for module in built.modules() if id(module) not in inside and is_large(module)]

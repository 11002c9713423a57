"""DHEN in PyTorch: the formulas and FQNs of src/models/dhen.h, from a config.json with the keys of DhenConfig and the
dense weights; its tables are SplitTables."""

import json
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from comparison.torch_tables import SplitTables

DEFAULTS = dict(
    num_attention_heads=1,
    cross_rank=64,
    mlp_size=0,
    numeric_sizes=[],
    head_sizes=[],
    layer_norm_eps=1e-5,
    initializer_range=0.02,
    embedding_seed=0,
)


class EmbeddingMix(nn.Module):
    """A linear map of embeddings to embeddings: [batch, inputs, d] to [batch, outputs, d]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.mix = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x):
        return self.mix(x.transpose(1, 2)).transpose(1, 2)


class Multilayer(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:]))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(F.relu(x) if index else x)
        return x


class AttentionInteraction(nn.Module):
    def __init__(self, config, inputs):
        super().__init__()
        width, self.heads = config["embedding_width"], config["num_attention_heads"]
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mix = EmbeddingMix(inputs, config["interaction_outputs"])

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        return self.mix(self.proj(attended.transpose(1, 2).flatten(2)))


class CrossInteraction(nn.Module):
    def __init__(self, config, inputs):
        super().__init__()
        numbers = inputs * config["embedding_width"]
        self.down = nn.Linear(numbers, config["cross_rank"], bias=False)
        self.up = nn.Linear(config["cross_rank"], numbers)
        self.mix = EmbeddingMix(inputs, config["interaction_outputs"])

    def forward(self, x):
        flat = x.flatten(1)
        return self.mix((flat * self.up(self.down(flat)) + flat).view_as(x))


class DotProductInteraction(nn.Module):
    def __init__(self, config, inputs):
        super().__init__()
        self.outputs = config["interaction_outputs"]
        self.linear = nn.Linear(inputs * (inputs - 1) // 2, self.outputs * config["embedding_width"])
        self.pairs = torch.triu_indices(inputs, inputs, offset=1)

    def forward(self, x):
        products = x @ x.transpose(1, 2)
        return self.linear(products[:, self.pairs[0], self.pairs[1]]).unflatten(1, (self.outputs, -1))


class LinearInteraction(nn.Module):
    def __init__(self, config, inputs):
        super().__init__()
        self.mix = EmbeddingMix(inputs, config["interaction_outputs"])

    def forward(self, x):
        return self.mix(x)


class MlpInteraction(nn.Module):
    def __init__(self, config, inputs):
        super().__init__()
        self.outputs, width = config["interaction_outputs"], config["embedding_width"]
        self.layers = Multilayer([inputs * width, config["mlp_size"], self.outputs * width])

    def forward(self, x):
        return self.layers(x.flatten(1)).unflatten(1, (self.outputs, -1))


INTERACTIONS = {
    "attention": AttentionInteraction,
    "cross": CrossInteraction,
    "dot_product": DotProductInteraction,
    "linear": LinearInteraction,
    "mlp": MlpInteraction,
}


class DhenLayer(nn.Module):
    def __init__(self, config, inputs):
        super().__init__()
        self.interactions, outputs = config["interactions"], layer_embeddings(config)
        for name in self.interactions:
            self.add_module(name, INTERACTIONS[name](config, inputs))
        self.shortcut = EmbeddingMix(inputs, outputs) if inputs != outputs else nn.Identity()
        self.norm = nn.LayerNorm(config["embedding_width"], config["layer_norm_eps"])

    def forward(self, x):
        ensemble = [getattr(self, name)(x) for name in self.interactions]
        return self.norm(torch.cat(ensemble, 1) + self.shortcut(x))


def layer_embeddings(config):
    return len(config["interactions"]) * config["interaction_outputs"]


class Dhen(nn.Module):
    """tables: a SplitTables. Its rows are no parameters, so that FSDP and DDP leave them alone."""

    def __init__(self, config, tables):
        super().__init__()
        self.config = config = {**DEFAULTS, **config}
        width, made = config["embedding_width"], layer_embeddings(config)
        self.tables = tables
        self.numeric = Multilayer([config["num_numeric_features"], *config["numeric_sizes"], width])
        first = 1 + len(config["table_rows"])
        self.layers = nn.ModuleList(
            DhenLayer(config, made if index else first) for index in range(config["num_hidden_layers"])
        )
        self.head = Multilayer([made * width, *config["head_sizes"], 1])

    def initialize(self):
        """Dense weights normal, biases zero, norms one."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config["initializer_range"])
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, numeric, categorical):
        """Logits [batch]."""
        x = torch.cat([self.numeric(numeric).unsqueeze(1), self.tables(categorical)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.flatten(1)).squeeze(1)


def make_folder(config, folder):
    """config.json and random dense weights; tables are made anew from their seed by whoever trains."""
    model = Dhen(config, nn.Identity())
    model.initialize()
    (folder / "config.json").write_text(json.dumps({"model_type": "dhen", "architectures": ["DHEN"], **config}))
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def read_dense(folder):
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


def load(folder):
    """Every rank of the process group calls it."""
    config = {**DEFAULTS, **json.loads((Path(folder) / "config.json").read_text())}
    model = Dhen(config, SplitTables(config))
    model.load_state_dict(read_dense(folder))
    return model

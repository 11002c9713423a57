"""DeepViT in PyTorch, by the paper's formula, with the FQNs of src/models/deepvit.h: for tests and benchmarks to
compare with. transformers has no such model. Dropout is left out.
"""

import json

import safetensors.torch
import torch
from torch import nn


class ReAttention(nn.Module):
    """Norm(Theta^T softmax(Q K^T / sqrt(d))) V."""

    def __init__(self, config):
        super().__init__()
        width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.qkv = nn.Linear(width, 3 * width, bias=config["qkv_bias"])
        self.theta = nn.Parameter(torch.randn(self.heads, self.heads))
        self.norm = nn.BatchNorm2d(self.heads)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        maps = torch.einsum("bhid,bhjd->bhij", q, k).div((width // self.heads) ** 0.5).softmax(-1)
        maps = self.norm(torch.einsum("hg,bhij->bgij", self.theta, maps))
        return self.proj(torch.einsum("bgij,bgjd->bigd", maps, v).reshape(batch, tokens, width))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc1 = nn.Linear(config["hidden_size"], config["intermediate_size"])
        self.activation = {"gelu": nn.GELU, "relu": nn.ReLU}[config["hidden_act"]]()
        self.fc2 = nn.Linear(config["intermediate_size"], config["hidden_size"])

    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(config["hidden_size"], config["layer_norm_eps"]) for _ in range(2))
        self.attention, self.mlp = ReAttention(config), MLP(config)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, patch = config["hidden_size"], config["patch_size"]
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (config["image_size"] // patch) ** 2 + 1, width))
        self.patches = nn.Conv2d(config["num_channels"], width, patch, stride=patch)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(images), -1, -1), tokens], dim=1) + self.positions


class DeepViT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.Sequential(*[Block(config) for _ in range(config["num_hidden_layers"])])
        self.norm = nn.LayerNorm(config["hidden_size"], config["layer_norm_eps"])
        self.classifier = nn.Linear(config["hidden_size"], config["num_labels"])

    def forward(self, images):
        return self.classifier(self.norm(self.layers(self.embeddings(images)))[:, 0])

    def save_pretrained(self, folder):
        (folder / "config.json").write_text(json.dumps(self.config))
        safetensors.torch.save_file(self.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})

"""The like of transformer.h for PyTorch's side."""

import torch
from torch import nn
from torch.nn import functional


class DecoderBlock(nn.Module):
    """Causal attention and two linear layers, each behind a normalisation and around a residual connection."""

    def __init__(self, width, heads, **factory):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, **factory)
        self.qkv = nn.Linear(width, 3 * width, **factory)
        self.out = nn.Linear(width, width, **factory)
        self.norm2 = nn.LayerNorm(width, **factory)
        self.up = nn.Linear(width, 4 * width, **factory)
        self.down = nn.Linear(4 * width, width, **factory)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = x + self.out(attention.transpose(1, 2).reshape(batch, length, width))
        return y + self.down(functional.gelu(self.up(self.norm2(y))))


class Transformer(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, **factory):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(vocabulary, width, **factory).mul_(0.02))
        self.norm = nn.LayerNorm(width, **factory)
        self.head = nn.Linear(width, vocabulary, **factory)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, **factory) for _ in range(layers))

    def forward(self, tokens):
        x = functional.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())

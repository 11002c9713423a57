"""The like of block.h for PyTorch's side."""

from torch import nn


class Block(nn.Module):
    """A normalisation and two linear layers around a residual connection."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

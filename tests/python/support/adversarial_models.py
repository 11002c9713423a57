"""Small models and inputs for the adversarial tests."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

X = torch.sin(torch.arange(32.0)).view(4, 8)
IDS = torch.arange(12).view(2, 6) % 20
IMAGES = torch.sin(torch.arange(2 * 3 * 14 * 14.0)).view(2, 3, 14, 14)


class TinyTransformer(nn.Module):
    """`reentrant`: None for no checkpointing."""

    def __init__(self, layers=2, width=16, reentrant=None):
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 24, 0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 20)
        self.reentrant = reentrant

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


def transformer_loss(model):
    return F.cross_entropy(model(IDS).flatten(0, 1).float(), IDS.flatten())


def squares(model):
    return model(X).pow(2).sum()


def two_linears():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def linear():
    torch.manual_seed(3)
    return nn.Linear(8, 8)


def transformer(**options):
    torch.manual_seed(3)
    return TinyTransformer(**options)


def convolutions():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 14, 3, groups=7), nn.BatchNorm2d(14), nn.ConvTranspose2d(14, 5, 3)
    )

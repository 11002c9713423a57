"""The like of chain.h for PyTorch's side."""

import torch

from torch_block import Block


def numbers(sizes, step, shift):
    places = torch.arange(torch.Size(sizes).numel()).to(torch.float32)
    return torch.sin(places * step + shift).view(sizes)


def make_chain(width, begin, end):
    chain = torch.nn.Sequential()
    with torch.no_grad():
        for i in range(begin, end):
            block = Block(width, 4 * width)
            for parameter in block.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(numbers(parameter.shape, 0.37, i) / width)
            block.up.bias.zero_()
            block.down.bias.zero_()
            chain.append(block)
    return chain

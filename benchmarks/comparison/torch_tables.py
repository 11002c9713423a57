"""Embedding tables whose rows are split over ranks, as a user of PyTorch would write them over all-to-all: looked-up
rows travel, and each rank updates its own."""

import numpy
import torch
import torch.distributed as dist
from torch import nn

# Of rows, as RowOptimizerOptions has them.
ROW_LEARNING_RATE, ROW_EPS = 0.01, 1e-8


def mix(value):
    """The output function of SplitMix64, of an array of 64 bits."""
    value = value + numpy.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return value ^ (value >> numpy.uint64(31))


def initial_rows(config, table, begin, end):
    """As models::fill_initial_rows: a row's values depend on seed, table and row alone."""
    with numpy.errstate(over="ignore"):
        key = mix(mix(numpy.array([config.get("embedding_seed", 0)], numpy.uint64)) + numpy.uint64(table))
        keys = mix(key + numpy.arange(begin, end, dtype=numpy.uint64))
        bits = mix(keys[:, None] + numpy.arange(config["embedding_width"], dtype=numpy.uint64))
    values = (bits >> numpy.uint64(40)).astype(numpy.float64) / (1 << 23) - 1.0
    return torch.from_numpy(values / config["table_rows"][table] ** 0.5).float()


class Exchange:
    """Who needs which rows of whom, for one lookup; each row that a batch needs several times travels once."""

    def __init__(self, tables, ids):
        keys, self.use = torch.unique((ids + tables.first).flatten(), return_inverse=True)
        owner, place = tables.address(keys)
        order = torch.argsort(owner, stable=True)
        self.use = torch.argsort(order)[self.use]
        self.asked = torch.bincount(owner, minlength=tables.size)
        self.to_give = torch.empty_like(self.asked)
        dist.all_to_all_single(self.to_give, self.asked)
        self.asked, self.to_give = self.asked.tolist(), self.to_give.tolist()
        self.here = self.send(place[order], self.asked, self.to_give)  # rows of this rank that others need

    @staticmethod
    def send(values, to, of):
        received = values.new_empty((sum(of), *values.shape[1:]))
        dist.all_to_all_single(received, values.contiguous(), of, to)
        return received


class Lookup(torch.autograd.Function):
    """anchor: a scalar that requires a gradient, so that backward comes by."""

    @staticmethod
    def forward(ctx, anchor, tables, ids):
        ctx.tables, ctx.exchange = tables, Exchange(tables, ids)
        rows = Exchange.send(tables.rows[ctx.exchange.here], ctx.exchange.to_give, ctx.exchange.asked)
        return rows[ctx.exchange.use].view(*ids.shape, -1)

    @staticmethod
    def backward(ctx, gradient):
        exchange, tables = ctx.exchange, ctx.tables
        sums = gradient.new_zeros((sum(exchange.asked), gradient.shape[-1]))
        sums.index_add_(0, exchange.use, gradient.flatten(0, 1))
        tables.add_gradient(exchange.here, Exchange.send(sums, exchange.asked, exchange.to_give) / tables.size)
        return None, None, None


class SplitTables(nn.Module):
    """All tables, one behind another, of which each rank holds rows of each: of R rows the first R % size ranks hold
    one more than the others. Gradients of rows are the mean over ranks."""

    def __init__(self, config):
        super().__init__()
        self.size, rank, counts = dist.get_world_size(), dist.get_rank(), config["table_rows"]
        self.first = torch.tensor([0, *numpy.cumsum(counts)[:-1].tolist()])
        parts = [[part(count, owner, self.size) for count in counts] for owner in range(self.size)]
        self.rows = torch.cat([initial_rows(config, table, *parts[rank][table]) for table in range(len(counts))])
        self.counts = torch.tensor(counts)
        lengths = torch.tensor([[end - begin for begin, end in of_rank] for of_rank in parts])
        self.places = lengths.cumsum(1) - lengths  # [owner, table]: where a part begins on its owner
        self.anchor = torch.zeros((), requires_grad=True)
        self.squares, self.gradients = torch.zeros(len(self.rows)), []

    def address(self, keys):
        """Owner of each row, and its place there."""
        table = torch.searchsorted(self.first, keys, right=True) - 1
        row, share, longer = keys - self.first[table], self.counts[table] // self.size, self.counts[table] % self.size
        behind = longer * (share + 1)
        owner = torch.where(row < behind, row // (share + 1), (row - behind) // share.clamp(min=1) + longer)
        return owner, row - owner * share - torch.minimum(owner, longer) + self.places[owner, table]

    def forward(self, ids):
        return Lookup.apply(self.anchor, self, ids)

    def add_gradient(self, rows, values):
        self.gradients.append((rows, values))

    @torch.no_grad()
    def step(self):
        """Row-wise Adagrad on the rows that were looked up; the gradient is used up."""
        if not self.gradients:
            return
        rows, use = torch.unique(torch.cat([rows for rows, _ in self.gradients]), return_inverse=True)
        values = torch.cat([values for _, values in self.gradients])
        gradient = values.new_zeros((len(rows), values.shape[1])).index_add_(0, use, values)
        self.gradients = []
        self.squares[rows] += gradient.square().mean(1)
        self.rows[rows] -= ROW_LEARNING_RATE * gradient / (self.squares[rows].sqrt() + ROW_EPS).unsqueeze(1)


def part(count, rank, size):
    share, longer = divmod(count, size)
    begin = rank * share + min(rank, longer)
    return begin, begin + share + (rank < longer)

"""The DHEN of benchmarks/compare's PyTorch side: with tables split over ranks it trains as one process with whole
tables does, from the rows that the library begins with."""

import itertools
import json
import sys

import pytest
import torch

from conftest import SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "benchmarks"))
import ranks as rank_processes
from comparison import torch_dhen, torch_tables

CONFIG = dict(
    num_numeric_features=3,
    table_rows=[2, 11, 30],
    embedding_width=8,
    num_hidden_layers=2,
    interactions=["attention", "cross", "dot_product", "linear", "mlp"],
    interaction_outputs=2,
    num_attention_heads=2,
    cross_rank=3,
    mlp_size=5,
    numeric_sizes=[6],
    head_sizes=[9],
    initializer_range=0.3,
    embedding_seed=4,
)
BATCH, STEPS, RATE = 6, 3, 0.05
RANK = """
import json, sys
sys.path[:0] = {paths}
import torch, torch.distributed as dist
from comparison import torch_dhen
import test_compare_dhen as test
dist.init_process_group("gloo")
model = torch_dhen.load({folder!r})
wrapped, losses = torch.nn.parallel.DistributedDataParallel(model), []
for step in range(test.STEPS):
    loss = test.loss_of(wrapped, dist.get_rank(), step)
    wrapped.zero_grad()
    loss.backward()
    test.descend(model)
    model.tables.step()
    losses.append(loss.item())
print(json.dumps(dict(losses=losses, rows=model.tables.rows.tolist(), squares=model.tables.squares.tolist(),
                      dense={{name: value.tolist() for name, value in model.state_dict().items()}})))
"""


class WholeTables(torch.nn.Module):
    """One process's, with a dense gradient."""

    def __init__(self, config):
        super().__init__()
        counts = torch.tensor(config["table_rows"])
        self.first = counts.cumsum(0) - counts
        self.rows = torch.cat(
            [torch_tables.initial_rows(config, table, 0, count) for table, count in enumerate(counts.tolist())]
        )
        self.rows.requires_grad_()
        self.squares = torch.zeros(len(self.rows))

    def forward(self, ids):
        return torch.nn.functional.embedding(ids + self.first, self.rows)

    @torch.no_grad()
    def step(self):
        self.squares += self.rows.grad.square().mean(1)
        self.rows -= (
            torch_tables.ROW_LEARNING_RATE * self.rows.grad / (self.squares.sqrt() + torch_tables.ROW_EPS).unsqueeze(1)
        )
        self.rows.grad = None


def loss_of(model, rank, step):
    counter = torch.arange(BATCH * 3).view(BATCH, 3) + 13 * rank + 29 * step
    categorical = (counter * 5).remainder(torch.tensor(CONFIG["table_rows"]))
    logits = model(counter.float().sin(), categorical)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, (categorical.sum(1) % 2).float())


@torch.no_grad()
def descend(model):
    for parameter in model.parameters():
        parameter -= RATE * parameter.grad


def train_alone(folder, size):
    model = torch_dhen.Dhen(CONFIG, WholeTables(CONFIG))
    model.load_state_dict(torch_dhen.read_dense(folder))
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        of_ranks = [loss_of(model, rank, step) for rank in range(size)]
        (sum(of_ranks) / size).backward()
        descend(model)
        model.tables.step()
        losses.append([loss.item() for loss in of_ranks])
    return model, losses


def run_ranks(folder, size):
    paths = [str(SOURCE_DIR / "benchmarks"), str(SOURCE_DIR / "tests/python")]
    (folder / "rank.py").write_text(RANK.format(paths=paths, folder=str(folder)))
    command = [sys.executable, folder / "rank.py"]
    return [json.loads(text) for text in rank_processes.outputs(command, size, 28700 + size, timeout=120)]


def whole_rows(held, size):
    """Of all tables, put together from what each rank holds."""
    held, rows = [iter(of_rank) for of_rank in held], []
    for count in CONFIG["table_rows"]:
        for rank in range(size):
            begin, end = torch_tables.part(count, rank, size)
            rows += itertools.islice(held[rank], end - begin)
    return torch.tensor(rows)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_split_tables_train_as_whole_ones(size, tmp_path):
    torch.manual_seed(0)
    torch_dhen.make_folder(CONFIG, tmp_path)
    printed = run_ranks(tmp_path, size)
    model, losses = train_alone(tmp_path, size)
    for step, expected in enumerate(losses):
        assert [rank["losses"][step] for rank in printed] == pytest.approx(expected, rel=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(torch.tensor(printed[0]["dense"][name]), value, rtol=1e-4, atol=1e-6)
    rows = whole_rows([rank["rows"] for rank in printed], size)
    torch.testing.assert_close(rows, model.tables.rows.detach(), rtol=1e-4, atol=1e-6)
    # Adagrad's steps do not depend on a gradient's scale, its sums of squares do.
    squares = whole_rows([rank["squares"] for rank in printed], size)
    torch.testing.assert_close(squares, model.tables.squares, rtol=1e-4, atol=1e-12)
    assert (rows - WholeTables(CONFIG).rows.detach()).abs().max() > 1e-3  # they learn


def test_initial_rows_are_those_of_the_library():
    """What models::fill_initial_rows writes for the begin of row 7 of table 2."""
    row = torch_tables.initial_rows(CONFIG, 2, 7, 8)[0]
    assert row[:4].tolist() == pytest.approx([0.180106133, 0.181852952, 0.126400039, 0.110910632], rel=1e-8)

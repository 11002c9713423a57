"""Tests in the manner of PyTorch's own, on its base classes, for the plug-in fsdp_cpp.testing.pytorch_tests. Its
imports are torch's alone."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import (
    MLP,
    FSDPTest,
    FSDPTestContinuous,
    FSDPTestMultiThread,
    check_sharded_parity,
)

RANKS = 2


def check_package():
    assert fully_shard.__module__.startswith("fsdp_cpp"), fully_shard.__module__
    assert FSDPModule.__module__.startswith("fsdp_cpp"), FSDPModule.__module__


class TrainingByProcesses(FSDPTest):
    @property
    def world_size(self):
        return RANKS

    @skip_if_lt_x_gpu(2)
    def test_parity_with_one_process(self):
        check_package()
        assert dist.get_world_size() == RANKS
        torch.manual_seed(42)
        model = nn.Sequential(*(MLP(6) for _ in range(3)))
        reference = copy.deepcopy(model)
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizers = [torch.optim.Adam(one.parameters(), lr=1e-2) for one in (model, reference)]
        torch.manual_seed(42 + self.rank)
        for _ in range(3):
            inputs = torch.randn(4, 6)
            losses = []
            for one, optimizer in zip((model, reference), optimizers, strict=True):
                optimizer.zero_grad()
                loss = one(inputs).sum()
                loss.backward()
                losses.append(loss)
            for parameter in reference.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= RANKS
            check_sharded_parity(self, reference, model)
            for optimizer in optimizers:
                optimizer.step()
            self.assertEqual(losses[0], losses[1])
        self.check_number_of_collectives()

    def check_number_of_collectives(self):
        model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(3)))
        for layer in model:
            fully_shard(layer, reshard_after_forward=False)
        fully_shard(model)
        with CommDebugMode() as counted:
            loss = model(torch.randn(2, 5)).sum()
        self.assertEqual(counted.get_comm_counts(), {torch.ops.c10d._allgather_base_: 3})
        with CommDebugMode() as counted:
            loss.backward()
        self.assertEqual(counted.get_comm_counts(), {torch.ops.c10d._reduce_scatter_base_: 3})
        self.assertEqual(counted.get_total_counts(), 3)


class StateByThreads(FSDPTestMultiThread):
    @property
    def world_size(self):
        return 3

    def test_parameters_are_dtensors(self):
        check_package()
        net = fully_shard(nn.Linear(4, 7))
        assert isinstance(net, FSDPModule)
        rows = [3, 3, 1][self.rank]
        for parameter in net.parameters():
            assert isinstance(parameter, DTensor) and parameter.to_local().shape[0] == rows


class ContinuousProcesses(FSDPTestContinuous):
    world_size = RANKS

    def test_one(self):
        check_package()
        net = fully_shard(nn.Linear(4, 4))
        net(torch.ones(1, 4)).sum().backward()
        assert net.weight.grad is not None or all(p.grad is not None for p in net.parameters())

    def test_two(self):
        self.assertEqual(dist.get_world_size(), RANKS)

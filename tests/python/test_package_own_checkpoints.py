"""fsdp_cpp.save and fsdp_cpp.load: training that goes on over other numbers of ranks, faults, and the program fsdp."""

import json
import os
import signal
import subprocess
from pathlib import Path

import torch

from package_beside import Model, assert_same, error_of, full, loss_of, make_batch, make_model, parameters_of, run_ranks

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


class Net(Model):
    """With buffers, of which one is in no state dict, and with dropout."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 3))
        self.register_buffer("scratch", torch.zeros(5), persistent=False)

    def forward(self, tokens):
        if self.training:
            self.count.add_(1)
        return super().forward(tokens)


def make_run(name, seed=3, device="cpu"):
    import fsdp_cpp

    torch.manual_seed(seed)
    with torch.device(device):
        model = Net()
    for block in model.blocks:
        fsdp_cpp.fully_shard(block)
    fsdp_cpp.fully_shard(model)
    model.blocks[0].up.weight.requires_grad_(False)
    groups = [
        {"params": [p for n, p in model.named_parameters() if "blocks" in n], "lr": 0.02},
        {"params": [p for n, p in model.named_parameters() if "blocks" not in n]},
    ]
    optimizer = OPTIMIZERS[name](groups)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def train_on(model, optimizer, scheduler, steps):
    """All ranks train on one batch, so that the number of ranks changes no value."""
    for step in steps:
        loss_of(model, make_batch(step, 0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def values_of(model, optimizer, scheduler):
    def value_of(value):
        return full(value) if isinstance(value, torch.Tensor) else value

    states = [{name: value_of(state[name]) for name in sorted(state)} for state in optimizer.state.values()]
    groups = [{n: group[n] for n in sorted(group) if n != "params"} for group in optimizer.param_groups]
    buffers = {"count": model.count.clone()}
    return parameters_of(model), states, groups, buffers, scheduler.state_dict()


def save_and_finish(rank, size, folder):
    import fsdp_cpp

    results = {}
    for name in OPTIMIZERS:
        run = make_run(name)
        train_on(*run, range(3))
        fsdp_cpp.save(f"{folder}/{name}", *run[:2], extra={"step": 3, "scheduler": run[2].state_dict()})
        saved = values_of(*run)
        train_on(*run, range(3, 5))
        results[name] = saved, values_of(*run), torch.rand(3)
    return results


def load_and_finish(rank, size, folder):
    import fsdp_cpp

    results = {}
    for name in OPTIMIZERS:
        run = make_run(name, seed=9, device="meta" if name == "AdamW" else "cpu")
        if name == "Rprop":
            train_on(*run, range(1))  # an optimizer that has state already
        loaded = fsdp_cpp.load(Path(folder) / name, *run[:2])
        assert loaded.extra["step"] == 3 and loaded.report == "" and loaded.random_state == (size == 2)
        run[2].load_state_dict(loaded.extra["scheduler"])
        saved = values_of(*run)
        train_on(*run, range(loaded.extra["step"], 5))
        results[name] = saved, values_of(*run), torch.rand(3)
    return results


def test_training_goes_on_over_other_numbers_of_ranks(tmp_path):
    finished = run_ranks(2, save_and_finish, str(tmp_path))
    for size in (1, 2, 3):
        for rank, results in enumerate(run_ranks(size, load_and_finish, str(tmp_path))):
            for name, (saved, final, random) in results.items():
                expected = finished[rank % 2][name]
                assert_same(saved, expected[0], f"{name}, {size} ranks")
                if size != 3:  # a mean of three equal gradients is rounded
                    assert_same(final, expected[1], f"{name}, {size} ranks, final")
                assert size != 2 or torch.equal(random, expected[2])
    program = Path(os.environ["FSDP_BUILD_DIR"]) / "fsdp"
    shown = fsdp(program, "inspect", tmp_path / "AdamW", "--verify", "--json")
    assert "optimizer/head.weight/exp_avg" in shown and "buffer/scratch" not in shown
    fsdp(program, "convert", tmp_path / "AdamW", tmp_path / "converted", "--to", "dcp")
    fsdp(program, "convert", tmp_path / "converted", tmp_path / "back", "--to", "fsdp")
    assert_same(*run_ranks(1, load_converted, str(tmp_path))[0])


def fsdp(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load_converted(rank, size, folder):
    import fsdp_cpp

    values = []
    for name in ("back", "AdamW"):
        run = make_run("AdamW", seed=9)
        fsdp_cpp.load(f"{folder}/{name}", *run[:2])
        values.append(values_of(*run))
    return values


# -- faults --


def one_that_dies(rank, size, folder, deaths):
    """Saves, trains on, and is killed during another save: rank 1 before, or in the middle of it by a file's size."""
    import resource

    import fsdp_cpp

    run = make_run("AdamW")
    fsdp_cpp.save(folder, *run[:2], extra=1)
    train_on(*run, range(1))
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills the rank when it writes this byte of a file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (deaths, resource.RLIM_INFINITY))
    fsdp_cpp.save(folder, *run[:2], extra=2)


def loaded_again(rank, size, folder):
    import fsdp_cpp

    run = make_run("AdamW", seed=9)
    return fsdp_cpp.load(folder, *run[:2]).extra, parameters_of(run[0]), parameters_of(make_run("AdamW")[0])


def test_a_rank_killed_during_a_save_leaves_the_previous_checkpoint(tmp_path):
    for deaths in (1, 6000):
        folder = str(tmp_path / str(deaths))
        errors = run_ranks(2, one_that_dies, folder, deaths, expect_failure=True)
        assert errors[1] is None and "rank 1" in str(errors[0])
        extra, loaded, expected = run_ranks(1, loaded_again, folder)[0]
        assert extra == 1
        assert_same(loaded, expected)


def refusals(rank, size, folder):
    import fsdp_cpp

    run = make_run("AdamW")
    train_on(*run, range(1))
    fsdp_cpp.save(folder, *run[:2])
    found = {}
    other = make_model(tied=False, dim=11)
    found["not sharded"] = error_of(lambda: fsdp_cpp.load(folder, other))
    fsdp_cpp.fully_shard(other)
    found["wrong model"] = error_of(lambda: fsdp_cpp.load(folder, other))
    found["inner module"] = error_of(lambda: fsdp_cpp.save(folder, run[0].blocks[0]))
    found["wrong optimizer"] = error_of(lambda: fsdp_cpp.load(folder, run[0], make_run("SGD")[1]))
    own = make_run("SGD")
    before = parameters_of(own[0])
    found["SGD"] = error_of(lambda: fsdp_cpp.load(folder, *own[:2]))
    assert_same(parameters_of(own[0]), before)
    own = make_run("Adam with amsgrad")
    found["Adam"] = error_of(lambda: fsdp_cpp.load(folder, *own[:2]))
    found["no JSON"] = error_of(lambda: fsdp_cpp.save(folder, *run[:2], extra={1, 2}))
    found["no folder"] = error_of(lambda: fsdp_cpp.load(folder + "-none", *run[:2]))
    found["no parent"] = error_of(lambda: fsdp_cpp.save("/proc/none/here", *run[:2]))
    assert fsdp_cpp.load(folder, other, strict=False).report.count("\n") > 5
    return found


def damaged(rank, size, folder):
    import fsdp_cpp

    run = make_run("AdamW")
    return error_of(lambda: fsdp_cpp.load(folder, *run[:2]))


def test_faults_are_named(tmp_path):
    folder = tmp_path / "saved"
    for found in run_ranks(2, refusals, str(folder)):
        assert found["not sharded"][0] == found["inner module"][0] == "ValueError"
        assert "blocks.0.up.weight" in found["wrong model"][1] and "[29, 13]" in found["wrong model"][1]
        assert "does not belong to the model" in found["wrong optimizer"][1]
        assert "'dampening' is missing" in found["SGD"][1] or "no option 'amsgrad'" in found["SGD"][1]
        assert "decoupled_weight_decay" in found["Adam"][1]
        assert found["no JSON"][0] == "TypeError"
        assert "saved-none" in found["no folder"][1] and "/proc/none" in found["no parent"][1]
    data = folder / "rank-00001-of-00002.safetensors"
    content = bytearray(data.read_bytes())
    content[-5] ^= 1
    data.write_bytes(content)
    for kind, text in run_ranks(2, damaged, str(folder)):
        assert kind == "RuntimeError" and data.name in text
    data.unlink()
    for kind, text in run_ranks(1, damaged, str(folder)):
        assert kind == "RuntimeError" and data.name in text
    assert json.loads((folder / "manifest.json").read_text())["content"]["state"]["user"]["extra"] is None

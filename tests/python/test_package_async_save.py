"""torch.distributed.checkpoint.async_save of sharded models while they train on, to the bit, in exchange with FSDP2."""

import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from package_beside import assert_same, full, loss_of, make_batch, make_model, parameters_of, run_ranks, shard_model

STAGERS = {
    "default": lambda: None,
    "in a thread": lambda: DefaultStager(StagingOptions(False, False, True, False)),
    "in shared memory": lambda: DefaultStager(StagingOptions(False, True, False, False)),
    "blocking": BlockingAsyncStager,
}

OPTIONS = {
    "sharded": StateDictOptions(),
    "on the host": StateDictOptions(cpu_offload=True),
    "full": StateDictOptions(full_state_dict=True),
    "full on rank 0": StateDictOptions(full_state_dict=True, cpu_offload=True),
}


def make_run(fsdp, seed=3):
    model = make_model(seed=seed, tied=False)
    shard_model(fsdp, model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def values_of(model, optimizer):
    """Copies of parameters and of the optimizer's tensors."""
    tensors = [{name: full(value) for name, value in state.items()} for state in optimizer.state.values()]
    return parameters_of(model), tensors


def states_of(model, optimizer, options=None):
    model_state, optimizer_state = dcp_state.get_state_dict(model, optimizer, options=options)
    return {"model": model_state, "optimizer": optimizer_state}


def train_on(model, optimizer, rank, steps=2):
    """Trains without a collective of torch's: the process group may be busy with a save."""
    for step in range(steps):
        loss_of(model, make_batch(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()


def save_and_train_on(run, folder, rank, states, **arguments):
    """Saves while two steps change what is saved. Returns the values at the time of the save."""
    model, optimizer = run
    expected = values_of(model, optimizer)
    saving = dcp.async_save(states, checkpoint_id=folder, **arguments)
    if not hasattr(saving, "result"):
        saving.staging_completion.result()
        saving = saving.upload_completion
    train_on(model, optimizer, rank)
    saving.result()
    assert not torch.equal(parameters_of(model)["head.weight"], expected[0]["head.weight"])
    return expected


def save_by_stagers(rank, size, folder):
    import fsdp_cpp

    saved = {}
    model, optimizer = run = make_run(fsdp_cpp)
    model.head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    train_on(model, optimizer, rank)
    for name, make_stager in STAGERS.items():
        loss_of(model, make_batch(0, rank)).backward()  # leaves gradients, which are no part of a state dict
        stager = make_stager()
        for place in (f"{folder}/first, {name}", f"{folder}/{name}"):  # stagers keep memory for the next save
            saved[place] = save_and_train_on(run, place, rank, states_of(*run), async_stager=stager)
        if stager is not None:
            stager.close()
    for name, options in OPTIONS.items():
        place = f"{folder}/{name}"
        saved[place] = save_and_train_on(run, place, rank, states_of(*run, options))
    return saved


def load(rank, size, reader, folders):
    import fsdp_cpp
    import torch.distributed.fsdp as fsdp2

    loaded = {}
    for folder in folders:
        model, optimizer = make_run({"ours": fsdp_cpp, "FSDP2": fsdp2}[reader], seed=9)
        states = states_of(model, optimizer)
        dcp.load(states, checkpoint_id=folder)
        dcp_state.set_state_dict(
            model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )
        loaded[folder] = values_of(model, optimizer)
    return loaded


def test_saves_while_training_goes_on(tmp_path):
    saved = run_ranks(2, save_by_stagers, str(tmp_path))[0]
    for reader, readers, names in (("FSDP2", 3, list(STAGERS)), ("ours", 1, list(OPTIONS))):
        expected = {folder: saved[folder] for folder in (f"{tmp_path}/{name}" for name in names)}
        for loaded in run_ranks(readers, load, reader, list(expected)):
            assert_same(loaded, expected)


def staged(rank, size):
    """Staged copies of a state dict: what they are, and that they do not hold the model."""
    import fsdp_cpp
    from torch.distributed.tensor import DTensor

    model, _ = make_run(fsdp_cpp)
    found = []
    for make_stager in list(STAGERS.values())[2:]:
        before = parameters_of(model)
        copies = make_stager().stage({"model": model.state_dict(), "parameters": dict(model.named_parameters())})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        for name, value in copies["model"].items():
            assert type(value) is type(copies["parameters"][name]) is DTensor
            assert torch.equal(value.full_tensor(), before[name])
            assert all(value is None for name, value in value.__dict__.items() if name != "_is_param")
        found.append(len(copies["model"]))
    return found


def test_staged_copies_are_plain_dtensors():
    run_ranks(2, staged)


def save_in_a_process(rank, size, folder):
    import fsdp_cpp

    os.environ["MASTER_ADDR"] = "127.0.0.1"
    run = make_run(fsdp_cpp)
    train_on(*run, rank)
    kind = AsyncCheckpointerType.PROCESS
    return {folder: save_and_train_on(run, folder, rank, states_of(*run), async_checkpointer_type=kind)}


def test_save_in_another_process(tmp_path):
    saved = run_ranks(2, save_in_a_process, str(tmp_path / "saved"))[0]
    assert_same(run_ranks(1, load, "ours", list(saved))[0], saved)

"""accelerate's paths of FSDP2 and FSDP1 on this package, beside PyTorch's own and one process."""

import copy
import gc
import os
import subprocess
import sys

import pytest
import torch

from package_hugging_face import check_engine, launch, make_llama, tokens
from package_ranks import library_environment, run_ranks
from ports import free_port

WRAPPED = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["LlamaDecoderLayer"]}
STATE_DICT_TYPES = ["FULL_STATE_DICT", "SHARDED_STATE_DICT"]


def make_accelerator(version, **plugin):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=version, **WRAPPED, **plugin))
    assert accelerator.is_fsdp2 == (version == 2)
    return accelerator


def prepare(model, **plugin):
    """The accelerator, the sharded model and its optimizer, which was built before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    accelerator = make_accelerator(2, reshard_after_forward=True, **plugin)
    return accelerator, *accelerator.prepare(model, optimizer)


def part(ids, rank, size):
    return ids.chunk(size)[rank]


def steps(accelerator, model, optimizer, which):
    """Trains, and returns the loss and the norm of the gradients of each step, one after the other."""
    results = []
    for step in which:
        ids = part(tokens(step), accelerator.process_index, accelerator.num_processes)
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        results += [loss.item(), float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)]
    return results


def plain_steps(model, size, which):
    """The same in one process: the mean loss of the parts, and its gradient's norm."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in which:
        for ids in tokens(step).chunk(size):
            (model(input_ids=ids, labels=ids).loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def generated(model):
    model.eval()
    return model.generate(tokens(0)[:1, :4], max_new_tokens=6, do_sample=False, pad_token_id=0)


def prepared_models(rank, size, port, engine):
    """What training gives for models of several kinds; on this package also beside one process."""
    launch(rank, size, port, engine)
    results = {}
    for name, tied, from_rank_0 in (("plain", False, False), ("tied", True, False), ("from rank 0", False, True)):
        model = make_llama(tie_word_embeddings=tied)
        plain = copy.deepcopy(model)
        if from_rank_0 and rank:
            torch.nn.init.zeros_(model.lm_head.weight)  # rank 0's values must reach all ranks
        accelerator, model, optimizer = prepare(model, cpu_ram_efficient_loading=from_rank_0)
        check_engine(model, engine)
        results[name] = steps(accelerator, model, optimizer, range(3))
        plain_steps(plain, size, range(3))
        whole = accelerator.get_state_dict(model)
        if rank == 0:
            assert whole.keys() == plain.state_dict().keys()
            for key, value in plain.state_dict().items():
                torch.testing.assert_close(whole[key], value, rtol=1e-4, atol=1e-5, msg=f"{name}: {key}")
        if engine == "fsdp_cpp":  # FSDP2 gathers in forward only
            assert torch.equal(generated(model), generated(plain)), name
    return results


def test_prepared_models_train_as_with_fsdp2_and_in_one_process():
    by_engine = {}
    for engine in ("fsdp_cpp", "torch"):
        with free_port() as port:
            by_engine[engine] = run_ranks(2, prepared_models, port, engine)
    for ours, theirs in zip(by_engine["fsdp_cpp"], by_engine["torch"], strict=True):
        for name, expected in theirs.items():
            assert ours[name] == pytest.approx(expected, rel=1e-6), name


def accumulation(rank, size, port, engine):
    """Two passes for a step, of which the first does not reduce."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    launch(rank, size, port, engine)
    model = make_llama()
    accelerator = Accelerator(
        gradient_accumulation_steps=2, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **WRAPPED)
    )
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    norms = []
    for step in range(6):
        ids = part(tokens(step), rank, size)
        with accelerator.accumulate(model):
            accelerator.backward(model(input_ids=ids, labels=ids).loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0).full_tensor()))
            optimizer.step()
            optimizer.zero_grad()
    return norms


def test_accumulated_gradients_are_those_of_fsdp2():
    with free_port() as port:
        ours = run_ranks(2, accumulation, port, "fsdp_cpp")
    with free_port() as port:
        theirs = run_ranks(2, accumulation, port, "torch")
    assert len(ours[0]) == 3 and ours[0] == pytest.approx(theirs[0], rel=1e-6)


def saved_states(rank, size, port, engine, folder, other):
    """Saves after a step, goes on, and goes on again from what was saved, here or in `other` by FSDP2."""
    launch(rank, size, port, engine)
    results = {}
    for kind in STATE_DICT_TYPES:
        prepared = prepare(make_llama(), state_dict_type=kind)
        accelerator, model, _ = prepared
        steps(*prepared, range(1))
        accelerator.save_state(f"{folder}/{kind}")
        results[kind] = steps(*prepared, range(1, 3))
        for saved in (folder, other) if other else (folder,):
            accelerator.load_state(f"{saved}/{kind}")
            assert steps(*prepared, range(1, 3)) == pytest.approx(results[kind], rel=1e-6), f"{kind} of {saved}"
        check_engine(model, engine)
        del prepared, model
        gc.collect()
    return results


def test_saved_states_continue_as_before_and_are_those_of_fsdp2(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with free_port() as port:
        expected = run_ranks(2, saved_states, port, "torch", theirs, None)
    with free_port() as port:
        results = run_ranks(2, saved_states, port, "fsdp_cpp", ours, theirs)
    for kind in STATE_DICT_TYPES:
        assert results[0][kind] == pytest.approx(expected[0][kind], rel=1e-6)
        assert sorted(os.listdir(ours / kind)) == sorted(os.listdir(theirs / kind))


def prepare_version_1(model, engine, **options):
    """The same with FullyShardedDataParallel, whose optimizer is built after the model."""
    accelerator = make_accelerator(1, **options)
    if engine == "torch":
        accelerator.state.device = torch.device("cpu")  # PyTorch refuses "cpu:0"
    model = accelerator.prepare(model)
    assert type(model).__module__.partition(".")[0] == engine
    return accelerator, model, accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=1e-2))


def version_1(rank, size, port, engine, folder, settings):
    """Returns for each setting the results of two steps, two more, and the same two after loading; and the weights."""
    launch(rank, size, port, engine)
    results = []
    for number, options in enumerate(settings):
        prepared = prepare_version_1(make_llama(), engine, **options)
        accelerator, model, _ = prepared
        first = steps(*prepared, range(2))
        accelerator.save_state(f"{folder}/{number}")
        later = steps(*prepared, range(2, 4))
        whole = accelerator.get_state_dict(model)
        if options["state_dict_type"] == "FULL_STATE_DICT":  # accelerate loads no sharded state into a new optimizer
            prepared = prepare_version_1(make_llama(), engine, **options)
        prepared[0].load_state(f"{folder}/{number}")
        results.append((first, later, steps(*prepared, range(2, 4)), whole if rank == 0 else None))
        del prepared, model
        gc.collect()
    return results


def test_version_1_trains_saves_and_goes_on(tmp_path):
    """PyTorch's FSDP1 trains this model on CPUs with NO_SHARD only: it crashes with the other strategies."""
    full, sharded = ({"state_dict_type": kind} for kind in STATE_DICT_TYPES)
    settings = [
        {"sharding_strategy": "FULL_SHARD", "use_orig_params": True, **full},
        {"sharding_strategy": "FULL_SHARD", "use_orig_params": False, **full},
        {"sharding_strategy": "FULL_SHARD", "use_orig_params": True, "activation_checkpointing": True, **sharded},
        {"sharding_strategy": "SHARD_GRAD_OP", "use_orig_params": False, **sharded},
        {"sharding_strategy": "NO_SHARD", "use_orig_params": True, **full},
    ]
    with free_port() as port:
        ours = run_ranks(2, version_1, port, "fsdp_cpp", tmp_path / "ours", settings)[0]
    with free_port() as port:
        ((*expected, whole),) = run_ranks(2, version_1, port, "torch", tmp_path / "theirs", settings[-1:])[0]
    for options, (*found, whole_found) in zip(settings, ours, strict=True):
        for losses, expected_losses in zip(found, expected, strict=True):
            assert losses == pytest.approx(expected_losses, rel=1e-6), options
        assert whole_found.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(whole_found[name], value, rtol=1e-5, atol=1e-6, msg=f"{options}: {name}")


SCRIPT = """
import fsdp_cpp

fsdp_cpp.install()

import torch
from accelerate import Accelerator
from package_hugging_face import check_engine, make_llama, tokens

accelerator = Accelerator()
model = make_llama()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
check_engine(model, "fsdp_cpp")
ids = tokens(accelerator.process_index)
accelerator.backward(model(input_ids=ids, labels=ids).loss)
optimizer.step()
accelerator.print(accelerator.distributed_type, accelerator.num_processes, accelerator.device.type)
"""
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_state_dict_type: SHARDED_STATE_DICT
num_machines: 1
num_processes: 2
"""


def test_scripts_that_accelerate_launches_with_a_config(tmp_path, source_dir):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    environment = {**os.environ, **library_environment(), "TMPDIR": str(tmp_path)}  # where the launcher leaves a folder
    environment["PYTHONPATH"] += os.pathsep + str(source_dir / "tests/python/support")
    with free_port() as port:
        arguments = ["--config_file", "config.yaml", "--main_process_port", str(port), "script.py"]
        command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "DistributedType.FSDP 2 cpu\n"

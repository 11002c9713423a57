"""Trainings that are killed, stopped and resumed, by the program as it is shipped."""

import collections
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import run_chaos
from resume_support import Job, write_model
from waiting import wait_until

# What saves and removals are made of. (close changes nothing, and is not as often in each run.)
CALLS = ["mkdir", "openat", "fallocate", "pwrite64", "fsync", "rename", "renameat2", "unlink", "unlinkat", "rmdir"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "it")


# ---------------------------------------------------------------- SIGKILL at each system call


STRACE = ["strace", "-f", "-qq", "-o"]


def calls_of_the_last_saves(job, trace, ranks):
    """System calls from the save at step 4, over the removal of checkpoint-2, to the end of the run: pairs of a name
    and the call's number among those of its thread, which is how strace counts."""
    result = job.run(before=[*STRACE, trace, "-e", "trace=" + ",".join(CALLS)], ranks=ranks)
    assert result.returncode == 0, result.stdout + result.stderr
    numbers, calls, begun = collections.Counter(), set(), False
    for line in trace.read_text().splitlines():
        call = re.match(r"(\d+) +(\w+)\(", line)
        if not call:
            continue
        numbers[call.groups()] += 1
        begun = begun or (call[2] == "mkdir" and ".checkpoint-4." in line)
        if begun:
            calls.add((call[2], numbers[call.groups()]))
    assert {"mkdir", "fsync", "pwrite64", "rename", "unlink", "rmdir"} <= {name for name, _ in calls}
    return sorted(calls)


def some_of(calls, of_each):
    """With FSDP_EVERY_SYSTEM_CALL all of them, otherwise `of_each` name."""
    if os.environ.get("FSDP_EVERY_SYSTEM_CALL"):
        return calls
    names = {name: [call for call in calls if call[0] == name] for name, _ in calls}
    return [call for alike in names.values() for call in alike[:: -(-len(alike) // of_each)]]


@pytest.mark.parametrize("ranks, asynchronous, of_each", [(1, False, 6), (2, False, 1), (2, True, 1)])
def test_a_kill_at_any_system_call_of_saves_and_removals_costs_nothing(
    fsdp_program, model, tmp_path, ranks, asynchronous, of_each
):
    # The learning rate is the same whatever max_steps is.
    config = {"save_total_limit": 1, "async_save": asynchronous, "lr_scheduler_type": "constant"}
    want = Job(fsdp_program, model, tmp_path / "whole", **config).finish(ranks=ranks)
    begun = Job(fsdp_program, model, tmp_path / "begun", **config)
    assert begun.run(overrides=["max_steps=2", "save_final=false"], ranks=ranks).returncode == 0
    calls = some_of(calls_of_the_last_saves(begun.copy(tmp_path / "traced"), tmp_path / "trace", ranks), of_each)

    def killed_and_resumed(call):
        name, number = call
        job = begun.copy(tmp_path / f"{name}-{number}")
        injection = f"inject={name}:signal=SIGKILL:when={number}"
        killed = job.run(before=[*STRACE, "/dev/null", "-e", f"trace={name}", "-e", injection], ranks=ranks)
        assert job.checkpoints(), call
        again = job.run(ranks=ranks)
        assert again.returncode == 0, f"{call}: {again.stdout}{again.stderr}"
        assert "resumed from" in again.stdout, f"{call}: from the beginning"
        assert job.left() == want, call
        assert job.leftovers() == [], call
        shutil.rmtree(job.folder)
        return killed.returncode != 0

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        was_killed = list(pool.map(killed_and_resumed, calls))
    # Threads take turns differently in each run, so that some numbers are not reached.
    assert all(was_killed) if ranks == 1 else sum(was_killed) > len(calls) / 2


def test_rounds_of_kills_end_equal_to_the_bit(fsdp_program, tmp_path):
    ends = run_chaos(fsdp_program, tmp_path, rounds=5, seed=7)
    assert sum(ends.values()) == 5


# ---------------------------------------------------------------- signals, torchrun, two jobs


def test_sigterm_to_the_launcher_saves_and_leaves(fsdp_program, model, tmp_path):
    want = Job(fsdp_program, model, tmp_path / "whole", max_steps=200, save_steps=None).finish(ranks=2)
    job = Job(fsdp_program, model, tmp_path / "job", max_steps=200, save_steps=1000)
    process = job.start(ranks=2)
    wait_until(lambda: (job.output / "metrics.jsonl").exists() and (job.output / "metrics.jsonl").stat().st_size > 0)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, out + err
    assert "SIGTERM: stopping after step" in out
    assert len(job.checkpoints()) == 1 and job.checkpoints() != ["checkpoint-200"]
    assert job.finish(ranks=2) == want


def test_without_checkpoints_sigterm_ends_the_run_at_once(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path / "job", max_steps=10**8, save_steps=None, resume_from_checkpoint=None)
    process = job.start()
    wait_until(lambda: (job.output / "metrics.jsonl").exists() and (job.output / "metrics.jsonl").stat().st_size > 0)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def torchrun(job, restarts, overrides=()):
    restarting = ["--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    addresses = ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    options = ["--no-python", "--nproc-per-node", "2", *restarting, *addresses]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "--log-dir", str(job.folder / "torchelastic")]
    return subprocess.Popen(
        command + job.command(overrides=overrides),
        env=job.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def rank_processes(job):
    """Process ids of the ranks of a job, by rank."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if line[0] == str(job.program).encode() and str(job.file).encode() in line:
            rank = [value[5:] for value in environment if value.startswith(b"RANK=")]
            found.update({int(value): int(pid) for value in rank})
    return found


def test_torchrun_restarts_a_job_whose_rank_was_killed(fsdp_program, model, tmp_path):
    config = {"max_steps": 200, "save_steps": 10}
    want = Job(fsdp_program, model, tmp_path / "whole", **config).finish(ranks=2)
    job = Job(fsdp_program, model, tmp_path / "job", **config)
    process = torchrun(job, restarts=2)
    wait_until(lambda: len(job.checkpoints()) >= 1)
    os.kill(rank_processes(job)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert "starts from the beginning" in out and "resumed from" in out
    assert job.left() == want


def test_torchruns_summary_has_the_root_cause(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path / "job", resume_from_checkpoint=str(tmp_path / "nowhere"))
    out, err = torchrun(job, restarts=0).communicate(timeout=120)
    assert "nowhere: holds no manifest.json" in err.split("Root Cause")[-1], out + err


def test_two_jobs_do_not_share_a_folder(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path / "job", max_steps=10**8, save_steps=5, save_total_limit=1)
    first = job.start(ranks=2)
    wait_until(lambda: len(job.checkpoints()) >= 1)
    second = job.run(ranks=2)
    assert second.returncode == 1
    assert "another run is writing to this folder" in second.stderr
    assert first.poll() is None
    first.kill()
    first.communicate(timeout=60)
    # The lock of the dead is not in the way.
    wait_until(lambda: not rank_processes(job))
    step = int(job.checkpoints()[-1].split("-")[1])
    result = job.run(ranks=2, overrides=[f"max_steps={step + 3}"])
    assert result.returncode == 0, result.stderr
    assert "resumed from" in result.stdout


# ---------------------------------------------------------------- damaged and foreign checkpoints


def change_a_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_changed_byte_is_found_and_its_tensor_named(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path / "job", max_steps=4)
    job.finish(ranks=2)
    damaged = job.output / "checkpoint-4"
    change_a_byte(damaged / "rank-00001-of-00002.safetensors")
    elsewhere = Job(fsdp_program, model, tmp_path / "elsewhere", resume_from_checkpoint=str(damaged))
    result = elsewhere.run(ranks=3)
    assert result.returncode == 1
    found = r"checkpoint-4: tensor .*rank-00001-of-00002.safetensors do not have the checksum"
    assert re.search(found, result.stderr)
    assert f"{job.output}/checkpoint-2 next to it is intact" in result.stderr


def test_a_restarted_job_goes_on_from_the_newest_sound_checkpoint(fsdp_program, model, tmp_path):
    want = Job(fsdp_program, model, tmp_path / "whole").finish(ranks=2)
    job = Job(fsdp_program, model, tmp_path / "job")
    job.finish(ranks=2)
    change_a_byte(job.output / "checkpoint-6/rank-00001-of-00002.safetensors")
    change_a_byte(job.output / "checkpoint-4/manifest.json")
    out, err = torchrun(job, restarts=0).communicate(timeout=120)
    assert "DAMAGED: " in out and f"resuming from {job.output}/checkpoint-2 instead" in out, out + err
    assert job.left() == want
    assert job.checkpoints() == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert sorted(path.name for path in job.output.glob("damaged-*")) == [
        "damaged-checkpoint-4",
        "damaged-checkpoint-6",
    ]


def test_checkpoints_of_another_model_are_refused(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path / "job", max_steps=2)
    job.finish()
    config = json.loads((model / "config.json").read_text())
    other = tmp_path / "other"
    shutil.copytree(model, other)
    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    save_file(
        {name: value for name, value in tensors.items() if ".layers.1." not in name},
        other / "model.safetensors",
        metadata={"format": "pt"},
    )
    result = job.run(overrides=[f"model_path={other}", "max_steps=4"])
    assert result.returncode == 1
    assert "does not fit this model" in result.stderr and "model.layers.1." in result.stderr


# ---------------------------------------------------------------- models that do not fit


def test_a_checkpoint_of_untied_weights_is_refused_by_a_model_that_ties_them(fsdp_program, model, tmp_path):
    untied = write_model(tmp_path / "untied", tied=False)
    job = Job(fsdp_program, untied, tmp_path / "job", save_final=False)
    assert job.run(ranks=2).returncode == 0
    checkpoint = job.output / "checkpoint-6"
    tied = Job(fsdp_program, model, tmp_path / "tied", resume_from_checkpoint=str(checkpoint), max_steps=7)
    result = tied.run(ranks=2)
    assert result.returncode == 1, result.stdout + result.stderr
    assert (
        "lm_head.weight is other values, expected those of 'model.embed_tokens.weight': they are one parameter"
        in result.stderr
    )
    assert result.stderr.count("lm_head.weight") == 1
    assert tied.metrics() == {} and tied.checkpoints() == []

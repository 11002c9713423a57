"""`fsdp train` on two hosts of two ranks each, made of network namespaces with names of their own: memory within a
host, Gloo between them."""

import json
import math
import os
import subprocess
import sys

import pytest

from conftest import SOURCE_DIR
from waiting import wait_until

sys.path.insert(0, str(SOURCE_DIR / "benchmarks"))
from comparison import network

MODEL = dict(
    model_type="llama",
    vocab_size=499,
    hidden_size=96,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
CONFIG = dict(
    model=MODEL,
    dataset="dummy:64",
    max_seq_length=16,
    train_batch_size=2,
    max_steps=5,
    learning_rate=1e-2,
    clip_grad_norm=0.5,
    seed=3,
    device="cpu",
)
PORT = 29437


def with_name(host, command):
    """The command as it runs on a host of this name."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *map(str, command)]


@pytest.fixture(scope="module")
def place():
    if subprocess.run(with_name("fsdp", ["true"]), capture_output=True, check=False).returncode:
        pytest.skip("no name of its own can be given to a host here (needs root)")
    try:
        with network.two_hosts(4, mbit=10000) as place:
            yield place
    except network.NotPermitted as reason:
        pytest.skip(str(reason))


def sent_between_hosts(place):
    """Bytes that the link between the hosts has carried so far, both ways."""
    names = dict.fromkeys(place.namespaces)
    return sum(
        int(
            subprocess.run(
                ["ip", "netns", "exec", name, "cat", f"/sys/class/net/cmp{host}/statistics/tx_bytes"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for host, name in enumerate(names)
    )


class Ranks:
    """One process a rank, in a `with` block: they are killed at its end."""

    def __init__(self, program, place, config, folder):
        folder.mkdir(parents=True)
        self.folder = folder
        self.metrics = folder / "output/metrics.jsonl"
        file = folder / "config.json"
        file.write_text(json.dumps({**config, "output_dir": str(folder / "output")}))
        self.processes = []
        for rank in range(4):
            command = [
                *place.prefix_of(rank),
                *with_name(f"host{rank // 2}", [program, "train", "--config-path", file]),
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **place.variables_of(rank, PORT)}
            with open(self.log(rank), "wb") as sink:
                self.processes.append(subprocess.Popen(command, env=environment, stdout=sink, stderr=subprocess.STDOUT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def log(self, rank):
        return self.folder / f"rank{rank}.log"

    def texts(self):
        return [self.log(rank).read_text() for rank in range(4)]

    def statuses(self):
        return [process.wait(timeout=180) for process in self.processes]


def train(program, place, config, folder):
    """The losses, what rank 0 has said, and what went between the hosts."""
    before = sent_between_hosts(place)
    with Ranks(program, place, config, folder) as ranks:
        assert ranks.statuses() == [0] * 4, ranks.texts()
    rows = [json.loads(line) for line in ranks.metrics.read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row], ranks.texts()[0], sent_between_hosts(place) - before


@pytest.mark.parametrize("strategy, dtype", (("full_shard", "fp32"), ("full_shard", "bf16"), ("hybrid_shard", "fp32")))
def test_trains_as_over_gloo(fsdp_program, place, tmp_path, strategy, dtype):
    config = {**CONFIG, "sharding_strategy": strategy, "dtype": dtype}
    losses, said, sent = train(fsdp_program, place, {**config, "comm_backend": "auto"}, tmp_path / "auto")
    flat_losses, flat_said, flat_sent = train(
        fsdp_program, place, {**config, "comm_backend": "gloo"}, tmp_path / "gloo"
    )
    assert "over shared memory and Gloo: 2 hosts of 2 ranks each: memory within a host, Gloo among hosts" in said
    assert "over Gloo" in flat_said
    assert len(losses) == CONFIG["max_steps"]
    tolerance = 1e-5 if dtype == "fp32" else 1e-2
    assert all(math.isclose(ours, flat, rel_tol=tolerance) for ours, flat in zip(losses, flat_losses)), (
        losses,
        flat_losses,
    )
    if strategy == "full_shard":  # each shard comes to a host once, not once for each of its ranks
        assert sent < (0.7 if dtype == "fp32" else 0.9) * flat_sent, (sent, flat_sent)
    else:  # only gradients go between hosts, once in either case
        assert sent < 1.1 * flat_sent, (sent, flat_sent)


def test_memory_of_all_ranks_is_refused(fsdp_program, place, tmp_path):
    with Ranks(fsdp_program, place, {**CONFIG, "comm_backend": "shm"}, tmp_path / "shm") as ranks:
        assert 0 not in ranks.statuses()
    for text in ranks.texts():
        assert "rank 0 on host 'host0' cannot reach the memory of rank 2 on host 'host1'" in text
        assert "Use `auto`" in text and "2 hosts of 2 ranks each" in text


@pytest.mark.parametrize("strategy", ("full_shard", "hybrid_shard"))
def test_a_killed_rank_is_named_on_all_hosts(fsdp_program, place, tmp_path, strategy):
    config = {**CONFIG, "sharding_strategy": strategy, "comm_backend": "auto", "max_steps": 10**6}
    with Ranks(fsdp_program, place, config, tmp_path / "ranks") as ranks:
        wait_until(lambda: ranks.metrics.exists() and ranks.metrics.read_text().count("\n") > 3, ranks.texts)
        ranks.processes[3].kill()
        statuses = ranks.statuses()  # long before the timeout of a collective
    assert 0 not in statuses
    for text in ranks.texts()[:3]:
        assert "rank 3 is lost" in text

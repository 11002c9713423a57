"""A Slurm of one host, for tests: munged, slurmctld and slurmd of their own, which end with the block."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo")

CONFIG = """
ClusterName=fsdp
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={control_port}
SlurmdPort={node_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
"""


class NotAvailable(Exception):
    """Why there is no Slurm here."""


def _check():
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        raise NotAvailable(f"not installed: {', '.join(missing)} (Debian's slurm-wlm and munge)")
    if os.getuid() != 0:
        raise NotAvailable("slurmd needs root")


def _wait_until_idle(environment):
    deadline = time.monotonic() + 30
    while True:
        state = subprocess.run(
            ["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True, check=False
        )
        if state.stdout.strip() == "idle":
            return
        if time.monotonic() > deadline:
            raise NotAvailable(f"Slurm does not come up here: {state.stdout}{state.stderr}")
        time.sleep(0.1)


@contextlib.contextmanager
def slurm_host():
    """The environment in which srun and its like find it."""
    _check()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm")))
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        ports = [stack.enter_context(free_port()) for _ in range(2)]
        config = folder / "slurm.conf"
        config.write_text(
            CONFIG.format(
                host=socket.gethostname().split(".")[0],
                folder=folder,
                cpus=os.cpu_count(),
                control_port=ports[0],
                node_port=ports[1],
            )
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI"))}
        environment["SLURM_CONF"] = str(config)
        for command in (
            [
                "munged",
                "--force",
                "--foreground",
                f"--key-file={key}",
                f"--socket={folder}/munge.socket",
                f"--pid-file={folder}/munge.pid",
                f"--log-file={folder}/munge.log",
                f"--seed-file={folder}/munge.seed",
            ],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        ):
            log = stack.enter_context(open(folder / f"{command[0]}.out", "wb"))
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        _wait_until_idle(environment)
        yield environment

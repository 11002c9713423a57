"""Starts a command on each of several ranks, with the environment of torchrun."""

import json
import os
import subprocess
import sys


def run(command, ranks, port, *, address="127.0.0.1", hosts=None):
    """What rank 0 prints, read as JSON. hosts: for each rank, a prefix of its command and variables of its own; each is
    then a host by itself. Ends the program when a rank fails."""
    processes = []
    for rank in range(ranks):
        prefix, variables = hosts[rank] if hosts else ([], {})
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0" if hosts else str(rank),
                       "LOCAL_WORLD_SIZE": "1" if hosts else str(ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port),
                       "OMP_NUM_THREADS": "1", **variables}
        processes.append(subprocess.Popen([*prefix, *map(str, command)], env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    outputs = [process.communicate() for process in processes]
    for rank, process in enumerate(processes):
        if process.returncode:
            sys.exit(f"error: rank {rank} of {' '.join(map(str, command))} failed:\n{outputs[rank][1]}")
    return json.loads(outputs[0][0])

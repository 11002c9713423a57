"""The runner's end of torch_server: one server for all runs of a call."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from comparison import ROOT, models
from ranks import RankError


class TorchRanks:
    """As a context manager; the server starts with the first run. kinds: of models whose code all runs share; that of
    others is imported by each run."""

    def __init__(self, kinds=()):
        self.kinds, self.server = [kind for kind in kinds if kind in models.CLASSES], None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.server:
            self.server.stdin.close()
            self.server.wait()

    def start(self):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]),
        }
        self.server = subprocess.Popen(
            [sys.executable, "-m", "comparison.torch_server", *self.kinds],
            text=True,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def outputs(self, arguments, places, keep_freed_memory, timeout, watch=None):
        """What each rank prints. places: for each rank its variables and the name of its network namespace or None.
        watch: gets what the server's has seen of the ranks."""
        if self.server is None:
            self.start()
        with tempfile.TemporaryDirectory(prefix="torch-ranks-") as folder:
            ranks = [
                {
                    "variables": variables,
                    "namespace": namespace,
                    "out": f"{folder}/{rank}.out",
                    "err": f"{folder}/{rank}.err",
                }
                for rank, (variables, namespace) in enumerate(places)
            ]
            request = {
                "arguments": list(map(str, arguments)),
                "ranks": ranks,
                "keep_freed_memory": keep_freed_memory,
                "watched": watch is not None,
                "timeout": timeout,
            }
            print(json.dumps(request), file=self.server.stdin, flush=True)
            answer = self.server.stdout.readline()
            if not answer:
                raise RankError(f"comparison.torch_server ended with status {self.server.wait()}")
            answer = json.loads(answer)
            self.check(answer["failed"], arguments, ranks, timeout)
            if watch is not None:
                watch.samples += answer["samples"]
            return [Path(rank["out"]).read_text() for rank in ranks]

    @staticmethod
    def check(failed, arguments, ranks, timeout):
        if failed is None:
            return
        how = f"did not end in {timeout} s" if failed["status"] is None else f"failed (status {failed['status']})"
        paths = [Path(rank["err"]) for rank in ranks]
        errors = [path.read_text() if path.exists() else "" for path in paths]
        raise RankError(
            f"rank {failed['rank']} of {' '.join(map(str, arguments))} {how}:\n{errors[failed['rank']]}", errors
        )

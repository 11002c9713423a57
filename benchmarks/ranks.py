"""Starts a command on each of several ranks, with the environment of torchrun."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time


class RankError(RuntimeError):
    """A rank that failed, or did not end in time; says which, and what it wrote. errors: what each rank had written to
    its standard error by then; the cause may stand in another rank's than in that of the first to end."""

    def __init__(self, message, errors=()):
        super().__init__(message)
        self.errors = list(errors)


def outputs(command, ranks, port, *, address="127.0.0.1", hosts=None, variables=None, timeout=None, watch=None):
    """What each rank prints. hosts: for each rank, a prefix of its command and variables of its own; each is then a
    host by itself. variables: for all ranks. timeout: seconds. watch: looks at the ids of their processes while they
    run. When a rank fails, the others are ended."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, contextlib.ExitStack() as opened:
        started = []
        try:
            for rank in range(ranks):
                prefix, own = hosts[rank] if hosts else ([], {})
                environment = {
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": "0" if hosts else str(rank),
                    "LOCAL_WORLD_SIZE": "1" if hosts else str(ranks),
                    "MASTER_ADDR": address,
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    **(variables or {}),
                    **own,
                }
                paths = [os.path.join(folder, f"{rank}.{name}") for name in ("out", "err")]
                out, err = [opened.enter_context(open(path, "w+")) for path in paths]
                process = subprocess.Popen(
                    [*prefix, *map(str, command)],
                    env=environment,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
                started.append((process, out, err))
            wait(command, started, timeout, watch)
            return [content(out) for _, out, _ in started]
        finally:
            for process, *_ in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def content(file):
    file.seek(0)
    return file.read()


def wait(command, started, timeout, watch=None):
    """Until all ranks have ended well."""

    def error(rank, how):
        errors = [content(err) for *_, err in started]
        return RankError(f"rank {rank} of {' '.join(map(str, command))} {how}:\n{errors[rank]}", errors)

    end = None if timeout is None else time.monotonic() + timeout
    while True:
        codes = [process.poll() for process, *_ in started]
        for rank, code in enumerate(codes):
            if code:
                raise error(rank, f"failed (status {code})")
        if None not in codes:
            return
        if end is not None and time.monotonic() > end:
            raise error(codes.index(None), f"did not end in {timeout} s")
        if watch:
            watch.look([process.pid for process, *_ in started])
        time.sleep(0.01 if watch else 0.05)


def run(command, ranks, port, **settings):
    """What rank 0 prints, read as JSON; settings as of outputs(). Ends the program when a rank fails."""
    try:
        return json.loads(outputs(command, ranks, port, **settings)[0])
    except RankError as error:
        sys.exit(f"error: {error}")

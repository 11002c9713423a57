"""Starts PyTorch's ranks by forking a process that has imported PyTorch and the models once: importing takes longer
than most runs. Nothing in it computes before a fork, so there are no threads that a fork would lose.

Usage: python -m comparison.torch_server KIND…: kinds of models whose code is imported. Reads requests, one JSON object
a line:
  arguments    of comparison.torch_training
  ranks        for each its variables, the name of its network namespace or null, and the files of its output and errors
  keep_freed_memory  whether memory that was freed stays with the process; otherwise that of tensors goes back at once
  watched      whether the ranks' memory is looked at
  timeout      seconds
and answers each, when all ranks have ended, with
  failed       null, or the number of the first rank that failed and its status (null: it was late)
  samples      of host_memory.Watch
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback

from comparison import host_memory, models, torch_training

CLONE_NEWNET = 0x40000000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4


def enter_namespace(name):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{name}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {name} cannot be entered")


def set_malloc(keep_freed_memory):
    """What runner.KEEP_FREED_MEMORY or runner.RETURN_FREED_MEMORY do for programs that are started."""
    libc = ctypes.CDLL(None)
    if keep_freed_memory:
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    else:
        libc.mallopt(M_MMAP_THRESHOLD, 2**16)


def be_rank(request, rank):
    """Never returns."""
    status = 1
    try:
        for number, path in ((1, rank["out"]), (2, rank["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.environ.update(rank["variables"])
        if rank["namespace"]:
            enter_namespace(rank["namespace"])
        set_malloc(request["keep_freed_memory"])
        torch_training.main(request["arguments"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve(request):
    """Forks the ranks and waits for them; when one fails or is late, ends the others."""
    running, end, failed = {}, time.monotonic() + request["timeout"], None
    watch = host_memory.Watch()
    for number, rank in enumerate(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            be_rank(request, rank)
        running[pid] = number
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            number = running.pop(pid)
            if status and failed is None:
                failed = {"rank": number, "status": os.waitstatus_to_exitcode(status)}
                end_all(running)
            continue
        if failed is None and time.monotonic() > end:
            failed = {"rank": min(running.values()), "status": None}
            end_all(running)
        if request["watched"]:
            watch.look(running)
        time.sleep(0.01)
    return {"failed": failed, "samples": watch.samples}


def end_all(running):
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def main():
    for kind in sys.argv[1:]:
        models.classes_of(kind)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

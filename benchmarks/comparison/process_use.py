"""What this process and its training thread use of the machine: what process_use.h counts on our side."""

import ctypes
import resource
import time
from pathlib import Path


def busy_seconds():
    """Seconds that the calling thread has run or waited for a processor."""
    run, ready, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return 1e-9 * (int(run) + int(ready))


class PartClock:
    """Wall time of a part of a step, and how much of it the calling thread was blocked: neither running nor ready to
    run."""

    def __init__(self):
        self.start, self.busy = time.perf_counter(), busy_seconds()

    def elapsed(self):
        seconds = time.perf_counter() - self.start
        return {"seconds": seconds, "blocked": max(0.0, seconds - (busy_seconds() - self.busy))}


def network_bytes_sent():
    """By all interfaces of this process's network namespace so far, headers included."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines)


def status_bytes(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def reset_peak_resident():
    """False where the system does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident_bytes():
    return status_bytes("VmHWM")


def limit_memory(more):
    """Limits what this process may take of memory of its own (RLIMIT_DATA) to `more` bytes beside what it has now,
    which it returns. Threads that start later reserve 1 MiB for their stack instead of the usual 8, since what is
    reserved counts."""
    libc, small_stack = ctypes.CDLL(None), ctypes.create_string_buffer(64)  # a pthread_attr_t has 56 bytes
    if (
        libc.pthread_attr_init(small_stack)
        or libc.pthread_attr_setstacksize(small_stack, ctypes.c_size_t(1 << 20))
        or (libc.pthread_setattr_default_np(small_stack))
    ):
        raise OSError("the size of threads' stacks could not be set")
    base = status_bytes("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (base + more, resource.RLIM_INFINITY))
    return base

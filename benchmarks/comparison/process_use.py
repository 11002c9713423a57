"""What this process and its training thread use of the machine: what process_use.h counts on our side."""

import resource
import time
from pathlib import Path


def busy_seconds():
    """Seconds that the calling thread has run or waited for a processor."""
    run, ready, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return 1e-9 * (int(run) + int(ready))


class PartClock:
    """Wall time of a part of a step, and how much of it the calling thread was blocked: neither running nor ready to run."""

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
    """What this process may take of memory of its own, beside what it has now."""
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + more, resource.RLIM_INFINITY))

"""Where a test program can leave something behind: its temporary folder, shared memory, processes that outlive it."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

# In the environment of a program and of all that it starts, also in sessions of their own.
MARK = "FSDP_TEST_PROGRAM"
SHARED_MEMORY = Path("/dev/shm")


def of_each_process(name):
    """A file that the kernel has of each process: {process id: bytes}."""
    found = {}
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        try:
            found[int(path.parent.name)] = path.read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
    return found


def processes_with(mark):
    """The processes that a program has started, by what their environment says: {process id: command line}."""
    marked = [
        process
        for process, environment in of_each_process("environ").items()
        if f"{MARK}={mark}".encode() in environment.split(b"\0")
    ]
    commands = of_each_process("cmdline") if marked else {}
    return {  # not those that have ended
        process: commands[process].replace(b"\0", b" ").decode(errors="replace")
        for process in marked
        if commands.get(process)
    }


def entries_of_shared_memory():
    """What libraries that tests use leave there under names."""
    return {entry.name for entry in SHARED_MEMORY.glob("*") if re.match(r"fsdp|torch_|gloo|nccl|sem\.", entry.name)}


def mapped_files():
    """Device and inode of each file that a process has mapped. Names would not do: a semaphore is mapped before it gets
    its own."""
    lines = b"".join(of_each_process("maps").values()).decode(errors="replace").splitlines()
    return {tuple(fields[3:5]) for line in lines if len(fields := line.split()) > 5}


def identity(path):
    """Device and inode as the kernel's list of mappings has them."""
    status = path.stat()
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", str(status.st_ino)


def left_in_shared_memory(before, patience=2):
    """The entries that have come since and that no process maps, not even after some seconds; those of other programs
    on this machine are in use, or about to be."""
    deadline = time.monotonic() + patience
    while left := unused_shared_memory(before):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def unused_shared_memory(before):
    left = []
    new = entries_of_shared_memory() - before
    mapped = mapped_files() if new else set()
    for name in sorted(new):
        # Looked at after the maps, because a program may have ended meanwhile and taken its own away.
        with contextlib.suppress(FileNotFoundError):
            if identity(SHARED_MEMORY / name) not in mapped:
                left.append(name)
    return left


class Surroundings:
    """The temporary folder of a program, and its mark on processes that it starts."""

    # pytest keeps the folders of failed tests, by a name for each user.
    EXPECTED = re.compile(r"pytest-of-")

    def __init__(self, program, reports):
        self.mark = f"{reports.name}/{program.name}"
        self.folder = reports / "tmp" / program.name
        self.folder.mkdir(parents=True)
        self.environment = (f"TMPDIR={self.folder}", f"TEST_TMPDIR={self.folder}", f"{MARK}={self.mark}")

    def leftovers(self, patience=5):
        """Sentences about what is left; processes get some seconds to end."""
        deadline = time.monotonic() + patience
        while (processes := processes_with(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        return [
            f"left {entry.name} in the temporary folder"
            for entry in sorted(self.folder.iterdir())
            if not self.EXPECTED.match(entry.name)
        ] + [f"left the process {command.strip()[:200]}" for command in processes.values()]

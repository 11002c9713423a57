"""What the ranks of a run have of a host's memory together: a page that several of them map counts once."""

import time
from pathlib import Path


def pss_bytes(process):
    """Its proportional set size: its own pages, and of each page that n processes map 1/n. 0 when it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise KeyError("Pss")


class Watch:
    """Looks at processes from outside, on all sides alike, half of the time: a look has to visit all of their pages."""

    def __init__(self):
        self.samples, self.next = [], 0.0  # pairs of a time and bytes

    def look(self, processes):
        """Called again and again."""
        begin = time.monotonic()
        if begin < self.next:
            return
        self.samples.append((begin, sum(map(pss_bytes, processes))))
        end = time.monotonic()
        self.next = end + (end - begin)

    def peak(self, begin, end):
        """None where nothing was seen between the two."""
        return max((size for moment, size in self.samples if begin <= moment <= end and size), default=None)

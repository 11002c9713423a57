"""Waiting for something that happens elsewhere."""

import time


def wait_until(happened, text=lambda: "", seconds=60):
    """Fails behind this time, with what `text` says then."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, text()
        time.sleep(0.01)

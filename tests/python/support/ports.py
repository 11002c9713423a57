"""A TCP port for ranks to meet at."""

import contextlib
import socket


@contextlib.contextmanager
def free_port():
    """A port that no other process is given as a free one in the block; a server that sets SO_REUSEADDR, as LibTorch's
    store does, can listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]

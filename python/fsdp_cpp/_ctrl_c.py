"""Ctrl-C while a rank waits for another one."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import torch

_interruption = torch.classes.fsdp_cpp.Interruption


def end_waits_at_ctrl_c() -> None:
    """Lets Ctrl-C end the library's waits, in which Python cannot act on it: the wait raises an error, the other ranks
    get one that names this rank, and KeyboardInterrupt follows.

    Does so only where Ctrl-C raises KeyboardInterrupt as Python has it: a program with a handler of its own may want to
    finish its step. Does nothing outside the main thread.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in (
        signal.default_int_handler,
        _raise_keyboard_interrupt,
    ):
        signal.signal(signal.SIGINT, _raise_keyboard_interrupt)
        _interruption.end_waits_at_sigint()


def _raise_keyboard_interrupt(number: int, frame: FrameType | None) -> None:
    _interruption.allow_waits()
    signal.default_int_handler(number, frame)

"""Loads the library of the package."""

import os

import torch


def load() -> None:
    torch.classes.load_library(os.environ["FSDP_CPP_LIBRARY"])
    torch.classes.fsdp_cpp.Build.check()

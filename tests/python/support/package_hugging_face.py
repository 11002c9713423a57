"""Runs of Hugging Face's libraries over ranks: a small Llama, on this package or on torch's own FSDP."""

import os

import torch

VOCABULARY = 97


def launch(rank, size, port, engine):
    """Sets what a launcher sets for a rank, and the engine that shards: "fsdp_cpp", "torch" or none.

    "torch" is PyTorch's FSDP2 with the same choice of FSDP on CPUs.
    """
    import fsdp_cpp
    from fsdp_cpp import _install_accelerate

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if engine == "fsdp_cpp":
        fsdp_cpp.install()
    elif engine == "torch":
        _install_accelerate.choose_fsdp_on_cpus(True)


def check_engine(model, engine):
    """Asserts that the engine which was asked for has sharded a model."""
    names = {"FSDPModule", "FullyShardedDataParallel"}
    sharded = [cls for one in model.modules() for cls in type(one).__mro__ if cls.__name__ in names]
    assert {cls.__module__.partition(".")[0] for cls in sharded} == ({engine} if engine is not None else set())


def make_llama(**config):
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, eos_token_id=None, **config))


def tokens(seed, count=4):
    return torch.randint(0, VOCABULARY, (count, 12), generator=torch.Generator().manual_seed(seed))


class Tokens(torch.utils.data.Dataset):
    """Random sequences of one length."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        ids = tokens(index, 1)[0]
        return {"input_ids": ids, "labels": ids}

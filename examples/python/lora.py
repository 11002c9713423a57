"""PEFT's LoRA on this engine: frozen weights and those that train share units, and frozen ones cost no gradients.

torchrun --nproc-per-node 2 examples/python/lora.py
"""

import torch
from fsdp_cpp import fully_shard
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def make_model():
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))
    return get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))


def train(model):
    """Trains on one batch, and returns the losses."""
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-2)
    ids = (torch.arange(16)[:, None] + torch.arange(12)) % 50
    losses = []
    for _ in range(10):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main():
    model = make_model()
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    losses = train(model)

    # The check of this example: the losses are those of one process, and the adapter can be saved whole.
    expected = train(make_model())
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0], losses
    adapter = {name: one.full_tensor() for name, one in model.named_parameters() if one.requires_grad}
    frozen = [one for one in model.parameters() if not one.requires_grad]
    assert all(one.grad is None for one in frozen)
    if torch.distributed.get_rank() == 0:
        trained, held = sum(one.numel() for one in adapter.values()), sum(one.to_local().numel() for one in frozen)
        print(
            f"LoRA: loss {losses[0]:.3f} -> {losses[-1]:.3f}; {trained} parameters train, {held} frozen ones are here"
        )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

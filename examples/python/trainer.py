"""The Trainer of transformers on this engine: one call, and a script that is otherwise unchanged.

    torchrun --nproc-per-node 2 examples/python/trainer.py

Without install(), the Trainer takes PyTorch's FSDP on GPUs, and DDP on CPUs.
"""

import tempfile

import fsdp_cpp
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

fsdp_cpp.install()

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def arguments(folder):
    return TrainingArguments(
        folder,
        max_steps=20,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_steps=10,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=torch.accelerator.is_available(),
        fsdp=True,
        fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "state_dict_type": "SHARDED_STATE_DICT"},
    )


def train(folder, resume=None):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, use_cache=False))
    rows = [{"input_ids": ids, "labels": ids} for ids in (torch.arange(start, start + 16) % 50 for start in range(64))]
    trainer = Trainer(model=model, args=arguments(folder), train_dataset=rows, eval_dataset=rows[:16])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main(folder):
    trainer = train(f"{folder}/whole")
    resumed = train(f"{folder}/resumed", resume=f"{folder}/whole/checkpoint-10")

    # The check of this example: this package has sharded the model, which has learned to count, and a run that is
    # resumed ends where the whole run did.
    assert isinstance(trainer.model, fsdp_cpp.FSDPModule)
    loss, again = (one.evaluate()["eval_loss"] for one in (trainer, resumed))
    assert loss < 1, loss
    assert loss == again, (loss, again)
    if trainer.is_world_process_zero():
        print(f"{type(trainer.model).__name__}: loss {loss:.4f} after 20 steps, {again:.4f} when resumed after 10")


if __name__ == "__main__":
    torch.distributed.init_process_group()
    with tempfile.TemporaryDirectory() as of_this_rank:
        folders = [of_this_rank]
        torch.distributed.broadcast_object_list(folders)  # all ranks save into rank 0's
        main(folders[0])
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()

"""The Trainer of transformers and TRL's SFTTrainer on this package, beside FSDP2 itself and one process."""

import os

import pytest
import torch

from package_hugging_face import VOCABULARY, Tokens, check_engine, launch, make_llama
from package_ranks import run_ranks
from ports import free_port

WRAPPED = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
KEPT_IN_FULL = {"model.safetensors", "optimizer.bin", "pytorch_model_fsdp.bin", "trainer_state.json"}
KEPT_IN_SHARDS = {"optimizer_0", "pytorch_model_fsdp_0", "trainer_state.json"}


def arguments(size, folder, sharded=True, fsdp_config=None, **more):
    """Arguments of five steps of four sequences, whatever the number of ranks."""
    if sharded:
        more |= {"fsdp": True, "fsdp_config": {**WRAPPED, **(fsdp_config or {})}}
    quiet = {"logging_steps": 1, "report_to": [], "disable_tqdm": True}
    batches = {"per_device_train_batch_size": 4 // size, "per_device_eval_batch_size": 4 // size}
    training = {"max_steps": 5, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "use_cpu": True, "seed": 0}
    return {"output_dir": str(folder), "save_strategy": "no", **quiet, **batches, **training, **more}


def history(trainer):
    """Losses and norms of gradients, as they are logged; then the loss of an evaluation."""
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    values = [float(entry[key]) for entry in logged for key in ("loss", "grad_norm")]
    return [*values, trainer.evaluate()["eval_loss"]]


def train(engine, size, folder, model=None, resume=None, **more):
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(**arguments(size, folder, sharded=engine is not None, **more))
    model = make_llama(use_cache=False) if model is None else model
    trainer = Trainer(model=model, args=args, train_dataset=Tokens(32), eval_dataset=Tokens(8))
    trainer.train(resume_from_checkpoint=resume)
    check_engine(trainer.model, engine)
    return trainer


def lora_of(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"]))


def plain_runs(rank, size, port, engine, folder):
    """What one process logs."""
    return {
        "full": history(train(None, 1, folder)),
        "accumulated": history(train(None, 1, folder, gradient_accumulation_steps=2)),
        "lora": history(train(None, 1, folder, model=lora_of(make_llama(use_cache=False)))),
    }


def sharded_runs(rank, size, port, engine, folder):
    """What ranks log. This package logs the same from the third step's checkpoint on, of either state dict type."""
    launch(rank, size, port, engine)
    results = {}
    for name, kind in (("full", "FULL_STATE_DICT"), ("shards", "SHARDED_STATE_DICT")):
        options = {"fsdp_config": {"state_dict_type": kind}, "save_strategy": "steps", "save_steps": 3}
        results[name] = history(train(engine, size, f"{folder}/{name}", **options))
        if engine == "fsdp_cpp":
            resumed = train(engine, size, f"{folder}/{name}", resume=f"{folder}/{name}/checkpoint-3", **options)
            assert history(resumed) == results[name], name
    if engine == "fsdp_cpp":
        assert history(train(engine, size, folder, gradient_checkpointing=True)) == results["full"]
        config = {"version": 1, "sync_module_states": False}
        options = {"fsdp_config": config, "save_strategy": "steps", "save_steps": 3}
        results["version 1"] = history(train(engine, size, f"{folder}/version-1", **options))
        resumed = train(engine, size, f"{folder}/version-1", resume=f"{folder}/version-1/checkpoint-3", **options)
        assert history(resumed) == results["version 1"]
    checkpointed = {"activation_checkpointing": True, "cpu_ram_efficient_loading": True}
    results["checkpointed"] = history(train(engine, size, folder, fsdp_config=checkpointed))
    results["accumulated"] = history(train(engine, size, folder, gradient_accumulation_steps=2))
    results["bf16"] = history(train(engine, size, folder, bf16=True))
    results["lora"] = history(train(engine, size, folder, model=lora_of(make_llama(use_cache=False))))
    return results


def run(function, size, engine, folder):
    """Rank 0's result."""
    with free_port() as port:
        return run_ranks(size, function, port, engine, str(folder))[0]


def test_trainer_logs_what_fsdp2_and_one_process_log(tmp_path):
    ours = run(sharded_runs, 2, "fsdp_cpp", tmp_path / "ours")
    theirs = run(sharded_runs, 2, "torch", tmp_path / "theirs")
    for name, values in theirs.items():
        # In bf16 the order of a sum shows.
        assert ours[name] == pytest.approx(values, rel=2e-3 if name == "bf16" else 1e-6), name
    for name, values in run(plain_runs, 1, None, tmp_path / "plain").items():
        assert ours[name] == pytest.approx(values, rel=1e-4), name
    assert ours["version 1"] == pytest.approx(ours["full"], rel=1e-6)
    assert len(ours["full"]) == 5 * 2 + 1 and ours["full"] == ours["shards"] == ours["checkpointed"] != ours["lora"]
    for name, kept in (("full", KEPT_IN_FULL), ("shards", KEPT_IN_SHARDS)):
        written = set(os.listdir(tmp_path / "ours" / name / "checkpoint-5"))
        assert written == set(os.listdir(tmp_path / "theirs" / name / "checkpoint-5")) and kept <= written


def make_tokenizer():
    """Words w0, w1, …"""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    words = {f"w{index}": index + len(special) for index in range(VOCABULARY - len(special))}
    tokenizer = Tokenizer(models.WordLevel(special | words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def texts(count):
    from datasets import Dataset

    words = [[f"w{(7 * row + 3 * column) % 90}" for column in range(6 + row % 5)] for row in range(count)]
    return Dataset.from_dict({"text": [" ".join(row) for row in words]})


def fine_tune(engine, size, folder, resume=None, lora=False, **more):
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        model=make_llama(use_cache=False, pad_token_id=0),
        args=SFTConfig(**arguments(size, folder, **more), max_length=16, bf16=False),
        train_dataset=texts(32),
        eval_dataset=texts(8),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=3, lora_alpha=6, task_type="CAUSAL_LM") if lora else None,
    )
    trainer.train(resume_from_checkpoint=resume)
    check_engine(trainer.model, engine)
    return trainer


def fine_tuned(rank, size, port, engine, folder):
    """What ranks log for a whole model and for LoRA. This package logs the same from the third step's checkpoint on."""
    os.environ["HF_HOME"] = f"{folder}/cache"
    launch(rank, size, port, engine)
    results = {}
    for name, lora, kind in (("whole", False, "SHARDED_STATE_DICT"), ("lora", True, "FULL_STATE_DICT")):
        options = {"lora": lora, "fsdp_config": {"state_dict_type": kind}, "save_strategy": "steps", "save_steps": 3}
        results[name] = history(fine_tune(engine, size, f"{folder}/{name}", **options))
        if engine == "fsdp_cpp":
            resumed = fine_tune(engine, size, f"{folder}/{name}", resume=f"{folder}/{name}/checkpoint-3", **options)
            assert history(resumed) == results[name], name
    return results


def test_sft_trainer_logs_what_fsdp2_logs(tmp_path):
    ours = run(fine_tuned, 2, "fsdp_cpp", tmp_path / "ours")
    theirs = run(fine_tuned, 2, "torch", tmp_path / "theirs")
    for name, values in theirs.items():
        assert ours[name] == pytest.approx(values, rel=1e-6), name
    assert ours["lora"] != ours["whole"]
    written = os.listdir(tmp_path / "ours/lora/checkpoint-5")
    assert sorted(written) == sorted(os.listdir(tmp_path / "theirs/lora/checkpoint-5"))
    assert "adapter_model.safetensors" in written


def lora_steps(model, which):
    """A plain loop over the parameters that train."""
    from package_hugging_face import tokens

    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    losses = []
    for step in which:
        loss = model(input_ids=tokens(step), labels=tokens(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def lora_on_ranks(rank, size, tolerance):
    """LoRA in units together with the frozen weights, one batch on all ranks, beside one process."""
    from fsdp_cpp import fully_shard
    from peft import get_peft_model_state_dict

    plain, model = lora_of(make_llama()), lora_of(make_llama())
    for layer in model.base_model.model.model.layers:
        kinds = {one.requires_grad for one in layer.parameters()}
        assert kinds == {True, False}
        fully_shard(layer)
    fully_shard(model)
    assert lora_steps(model, range(4)) == pytest.approx(lora_steps(plain, range(4)), rel=tolerance, abs=0)
    for (name, mine), (_, its) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert mine.requires_grad == its.requires_grad, name
        torch.testing.assert_close(mine.full_tensor(), its.detach(), rtol=tolerance, atol=tolerance, msg=name)
    adapter, expected = get_peft_model_state_dict(model), get_peft_model_state_dict(plain)
    assert adapter.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(adapter[name].full_tensor(), value, rtol=tolerance, atol=tolerance, msg=name)
    for one in (model, plain):
        one.merge_adapter()  # writes to whole parameters
    with torch.no_grad():
        merged, wanted = (one(input_ids=torch.arange(8)[None]).logits for one in (model, plain))
    torch.testing.assert_close(merged, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ranks, tolerance", [(2, 0), (3, 1e-5)])  # a third of a sum of three is rounded
def test_lora_trains_as_in_one_process(ranks, tolerance):
    run_ranks(ranks, lora_on_ranks, tolerance)

"""`fsdp train` trains as PyTorch does: the same losses, gradient norms and final weights, on the same data.

The reference is a single process that goes through every rank's batches with plain PyTorch and transformers; PyTorch's
DDP, FSDP1 and FSDP2 must agree with it too, or the comparison says nothing.
"""

import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

import torch_fsdp_reference as reference
from fsdp_train import fsdp_train
from model_support import edit_tensors

VOCABULARY = 97
LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
GPT2 = dict(
    vocab_size=VOCABULARY,
    n_embd=32,
    n_inner=44,
    n_layer=3,
    n_head=4,
    n_positions=64,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
# fp32: what the order of additions changes in ten to thirty steps; several times what is seen.
TOLERANCE = 1e-5
# bf16 and fp16: both sides round the same values and add gradients in fp32, but weights that differ in the last bit of
# fp32 may be rounded to neighbours, and later steps see that. FSDP2 beside the single process: norms to 2.5e-4, weights
# to 1.1e-5.
LOW_PRECISION_TOLERANCE = 1e-4

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")
FORMS = tuple(itertools.product(("transformer", "size", "none"), (True, False)))  # wrap_policy, use_orig_params


def combinations():
    """Each world size with each strategy, and with each policy and form of parameters; two of these at a time."""
    for world_size, (row, strategy) in itertools.product((1, 2, 3, 4), enumerate(STRATEGIES)):
        for offset in (0, 3):
            policy, use_orig_params = FORMS[(row + world_size + offset) % len(FORMS)]
            yield pytest.param(
                world_size,
                strategy,
                policy,
                use_orig_params,
                id=f"{world_size}-{strategy}-{policy}-{'orig' if use_orig_params else 'flat'}",
            )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Models with untied and with tied embeddings, and token files."""
    folder = tmp_path_factory.mktemp("parity")
    reference.make_llama(folder / "untied", tie_word_embeddings=False, **LLAMA)
    reference.make_llama(folder / "tied", seed=1, tie_word_embeddings=True, **LLAMA)
    reference.make_model(folder / "gpt2", GPT2Config(**GPT2))
    reference.make_model(folder / "gpt2_old_names", GPT2Config(**GPT2, tie_word_embeddings=False))
    edit_tensors(
        folder / "gpt2_old_names",
        lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()},
    )
    reference.make_tokens(folder / "train.bin", 12 * 50 + 5, VOCABULARY)
    reference.make_tokens(folder / "eval.bin", 12 * 7 + 1, VOCABULARY, seed=1)
    return folder


@pytest.fixture(scope="module")
def base_config(inputs):
    return dict(
        model_path=str(inputs / "untied"),
        dataset=str(inputs / "train.bin"),
        dtype="fp32",
        max_seq_length=12,
        train_batch_size=2,
        max_steps=10,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        weight_decay=0.1,
        clip_grad_norm=0.5,
        seed=7,
        save_final=True,
    )


@pytest.fixture(scope="module")
def single_process():
    """The reference run of a config, computed once for each."""
    known = {}

    def run(config, world_size):
        key = (world_size, *sorted((name, str(value)) for name, value in config.items()))
        if key not in known:
            known[key] = reference.train(config, world_size, "single")
        return known[key]

    return run


def distance(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def of_taken_steps(norms, expected):
    return [norm for norm, skipped in zip(norms, expected.skipped, strict=True) if not skipped]


def tolerance_of(config):
    return TOLERANCE if config["dtype"] == "fp32" else LOW_PRECISION_TOLERANCE


def what_counts(name, tensor):
    """Softmax takes no notice of a number added to all scores of a query, so the gradient of a bias of keys is nothing
    but rounding errors, which AdamW makes steps of."""
    if not name.endswith("c_attn.bias"):
        return tensor
    query, _, value = tensor.chunk(3)
    return torch.cat([query, value])


def assert_same_training(losses, norms, weights, expected, tolerance=TOLERANCE):
    assert losses == pytest.approx(expected.losses, rel=tolerance)
    assert of_taken_steps(norms, expected) == pytest.approx(
        of_taken_steps(expected.grad_norms, expected), rel=10 * tolerance
    )
    assert weights.keys() == expected.weights.keys()
    distances = {
        name: distance(what_counts(name, weights[name]), what_counts(name, whole))
        for name, whole in expected.weights.items()
    }
    far = {name: far for name, far in distances.items() if far > tolerance}
    assert not far, f"weights differ by more than {tolerance} of their norm: {far}"


def assert_trains_like(run, expected, tolerance=TOLERANCE):
    weights = run.weights()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert_same_training(run.losses, [row["grad_norm"] for row in run.steps], weights, expected, tolerance)
    assert [row["learning_rate"] for row in run.steps] == pytest.approx(expected.learning_rates, rel=1e-9)


def test_reference_learns(base_config, single_process):
    expected = single_process(base_config, 2)
    start = AutoModelForCausalLM.from_pretrained(base_config["model_path"])
    assert expected.losses[-1] < expected.losses[0] - 0.01
    moved = {name: distance(expected.weights[name], tensor) for name, tensor in start.named_parameters()}
    assert min(moved.values()) > 100 * TOLERANCE, "training must move every tensor for a comparison to mean something"


HYBRID = {"sharding_strategy": "hybrid_shard", "sharding_factor": 2}
HYBRID_ZERO2 = {"sharding_strategy": "hybrid_shard_zero2", "sharding_factor": 2}
BF16 = {"dtype": "bf16", "mixed_precision_reduce_dtype": "fp32"}
# Starts with a scale that overflows, and grows into overflow again.
FP16 = {
    "dtype": "fp16",
    "mixed_precision_reduce_dtype": "fp32",
    "fp16_init_scale": 2.0**21,
    "fp16_growth_interval": 2,
    "max_steps": 14,
}


@pytest.mark.parametrize(
    "method, world_size, changes",
    [
        ("ddp", 2, {}),
        ("fsdp1", 2, {}),
        ("fsdp1", 2, {"sharding_strategy": "shard_grad_op", "use_orig_params": False}),
        ("fsdp2", 2, {}),
        ("fsdp1", 4, HYBRID),
        ("fsdp2", 4, HYBRID),
        ("fsdp1", 4, HYBRID_ZERO2),
        ("fsdp2", 4, {"reshard_after_forward": 2}),
        ("fsdp1", 2, BF16),
        ("fsdp2", 2, BF16),
        ("fsdp1", 2, FP16),
        ("fsdp2", 2, FP16),
    ],
)
def test_pytorch_agrees_with_the_reference(base_config, single_process, method, world_size, changes):
    config = {**base_config, **changes}
    run, expected = reference.train(config, world_size, method), single_process(config, world_size)
    assert_same_training(run.losses, run.grad_norms, run.weights, expected, tolerance_of(config))
    assert (run.loss_scales, run.skipped) == (expected.loss_scales, expected.skipped)


@pytest.mark.parametrize("world_size, strategy, policy, use_orig_params", list(combinations()))
@pytest.mark.usefixtures("communicator")
def test_matches_single_process(
    fsdp_program, base_config, single_process, tmp_path, world_size, strategy, policy, use_orig_params
):
    config = dict(sharding_strategy=strategy, wrap_policy=policy, use_orig_params=use_orig_params)
    if policy == "size":
        config["size_min_params"] = 5000
    run = fsdp_train(fsdp_program, {**base_config, **config}, world_size, tmp_path)
    assert_trains_like(run, single_process(base_config, world_size))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(HYBRID, id="hybrid"),
        pytest.param({**HYBRID, "use_orig_params": False, "wrap_policy": "none"}, id="hybrid, one flat unit"),
        pytest.param(HYBRID_ZERO2, id="hybrid zero2"),
        pytest.param({"sharding_strategy": "hybrid_shard"}, id="hybrid by host"),
        pytest.param({"reshard_after_forward": 2}, id="reshard to pairs"),
        pytest.param({**HYBRID, "sharding_factor": 4, "reshard_after_forward": 2}, id="hybrid, reshard to pairs"),
        pytest.param({"reshard_after_forward": False}, id="no reshard"),
        pytest.param({"wrap_policy": "auto_units", "auto_units_target_bytes": 20000}, id="automatic units"),
        pytest.param(
            {**HYBRID, "wrap_policy": "auto_units", "gradient_accumulation_steps": 3, "sync_each_batch": False},
            id="hybrid, automatic units, accumulation without communication",
        ),
        pytest.param({"gradient_accumulation_steps": 3, "sync_each_batch": True}, id="accumulation of shards"),
        pytest.param(
            {"gradient_accumulation_steps": 3, "sync_each_batch": False}, id="accumulation without communication"
        ),
        pytest.param(
            {**HYBRID_ZERO2, "gradient_accumulation_steps": 3, "sync_each_batch": False},
            id="hybrid zero2, accumulation without communication",
        ),
        pytest.param(
            {**HYBRID, "gradient_accumulation_steps": 3, "all_reduce_each_batch": False},
            id="hybrid, accumulation inside the shard group",
        ),
    ],
)
@pytest.mark.usefixtures("communicator")
def test_four_ranks_match_single_process(fsdp_program, base_config, single_process, tmp_path, changes):
    shared = {key: value for key, value in changes.items() if key == "gradient_accumulation_steps"}
    run = fsdp_train(fsdp_program, {**base_config, **changes}, 4, tmp_path)
    assert_trains_like(run, single_process({**base_config, **shared}, 4))


@pytest.mark.parametrize(
    "world_size, changes",
    [
        pytest.param(2, {}, id="full shard"),
        pytest.param(4, {**HYBRID, "gradient_accumulation_steps": 2}, id="hybrid, accumulation"),
        pytest.param(
            2, {"sharding_strategy": "no_shard", "keep_low_precision_grads": True}, id="no shard, gradients kept"
        ),
        pytest.param(
            2, {"gradient_accumulation_steps": 2, "sync_each_batch": False}, id="accumulation without communication"
        ),
    ],
)
@pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.usefixtures("communicator")
def test_low_precision_matches_single_process(
    fsdp_program, base_config, single_process, tmp_path, precision, world_size, changes
):
    config = {**base_config, **precision}
    shared = {key: value for key, value in changes.items() if key == "gradient_accumulation_steps"}
    run = fsdp_train(fsdp_program, {**config, **changes}, world_size, tmp_path)
    expected = single_process({**config, **shared}, world_size)
    assert_trains_like(run, expected, LOW_PRECISION_TOLERANCE)
    if precision is FP16:
        assert [row["loss_scale"] for row in run.steps] == expected.loss_scales
        assert [row["skipped"] for row in run.steps] == expected.skipped
        assert [row["grad_norm"] is None for row in run.steps] == expected.skipped
        assert 2 < sum(expected.skipped) < len(expected.skipped) - 3, "some steps must be skipped, and some taken"


@pytest.mark.usefixtures("communicator")
def test_reduction_in_bf16_adds_in_fp32(fsdp_program, base_config, single_process, tmp_path):
    run = fsdp_train(fsdp_program, {**base_config, "dtype": "bf16"}, 2, tmp_path)
    assert_trains_like(run, single_process({**base_config, **BF16}, 2), LOW_PRECISION_TOLERANCE)


@pytest.mark.usefixtures("communicator")
def test_normalisations_in_full_precision_change_little(fsdp_program, base_config, single_process, tmp_path):
    config = {**base_config, **BF16}
    run = fsdp_train(fsdp_program, {**config, "full_precision_classes": ["RMSNorm"]}, 2, tmp_path)
    rounded, exact = single_process(config, 2), single_process(base_config, 2)
    assert run.losses != rounded.losses
    assert run.losses == pytest.approx(exact.losses, rel=2e-3)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"gradient_divide_factor": 5, "clip_grad_norm": 0.2}, id="gradient divide factor"),
        pytest.param({"gradient_accumulation_steps": 3}, id="accumulation"),
        pytest.param({"shuffle": False, "lr_scheduler_type": "linear"}, id="in order, linear"),
        pytest.param(
            {"clip_grad_norm": 0, "lr_scheduler_type": "constant", "warmup_steps": 0}, id="no clipping, constant"
        ),
        pytest.param({"max_steps": 30, "learning_rate": 1e-4}, id="several epochs"),
        pytest.param({"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}, id="adam"),
        pytest.param({"wrap_classes": ["Embedding"]}, id="embedding as a unit"),
    ],
)
@pytest.mark.usefixtures("communicator")
def test_keys_mean_what_they_mean_in_pytorch(fsdp_program, base_config, single_process, tmp_path, changes):
    config = {**base_config, **changes}
    without_wrapping = {key: value for key, value in config.items() if key != "wrap_classes"}
    assert_trains_like(fsdp_train(fsdp_program, config, 2, tmp_path), single_process(without_wrapping, 2))


@pytest.mark.parametrize(
    "world_size, model, changes",
    [
        pytest.param(1, "gpt2", {}, id="1"),
        pytest.param(2, "gpt2", {"activation_checkpointing": True}, id="2, recomputed"),
        pytest.param(3, "gpt2", {"use_orig_params": False}, id="3, flat"),
        pytest.param(2, "gpt2_old_names", {}, id="2, old names"),
        pytest.param(
            3,
            "gpt2_old_names",
            {"sync_module_states": True, "wrap_policy": "auto_units"},
            id="3, old names, read by rank 0",
        ),
    ],
)
@pytest.mark.usefixtures("communicator")
def test_gpt2_matches_single_process(
    fsdp_program, base_config, inputs, single_process, tmp_path, world_size, model, changes
):
    config = {**base_config, "model_path": str(inputs / model)}
    run = fsdp_train(fsdp_program, {**config, **changes}, world_size, tmp_path)
    assert_trains_like(run, single_process(config, world_size))


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.usefixtures("communicator")
def test_tied_embeddings_and_evaluation(fsdp_program, base_config, inputs, single_process, tmp_path, world_size):
    config = {
        **base_config,
        "model_path": str(inputs / "tied"),
        "do_eval": True,
        "eval_dataset": str(inputs / "eval.bin"),
        "eval_batch_size": 3,
    }
    run, expected = fsdp_train(fsdp_program, config, world_size, tmp_path), single_process(config, world_size)
    weights = {name: tensor for name, tensor in expected.weights.items() if name != "lm_head.weight"}
    assert run.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert run.eval_loss == pytest.approx(expected.eval_loss, rel=TOLERANCE)
    assert {name: distance(run.weights()[name], whole) for name, whole in weights.items()} == {
        name: pytest.approx(0, abs=TOLERANCE) for name in weights
    }


@pytest.mark.usefixtures("communicator")
def test_saved_folder_is_one_that_transformers_loads(fsdp_program, base_config, inputs, single_process, tmp_path):
    config = {**base_config, "do_eval": True, "eval_dataset": str(inputs / "eval.bin")}
    run = fsdp_train(fsdp_program, config, 2, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(run.final)
    assert model.dtype == torch.float32
    evaluated = reference.evaluate(model, {**reference.DEFAULTS, **config})
    assert evaluated == pytest.approx(run.eval_loss, rel=TOLERANCE)

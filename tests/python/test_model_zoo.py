"""Unmodified models of transformers and torch.nn in the engine, under the strictest release."""

import copy
import warnings

import pytest
import torch
import transformers
from torch import nn
from torch.nn.utils import parametrizations

from adversarial_support import (
    Sharded,
    assert_bit_equal,
    assert_trains_like_plain,
    one_unit,
    own_process,
    unit_per_layer,
    unit_per_module,
)

warnings.filterwarnings("ignore", module="transformers")

VOCABULARY = 97
TEXT_MODEL = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
)
IDS = torch.arange(24).view(2, 12) * 7 % VOCABULARY
LABELS = torch.arange(24).view(2, 12) * 5 % VOCABULARY
IMAGES = torch.sin(torch.arange(2 * 3 * 32 * 32.0)).view(2, 3, 32, 32)


def language_loss(model):
    return model(input_ids=IDS, labels=LABELS).loss


def image_loss(model):
    return model(pixel_values=IMAGES, labels=torch.tensor([0, 1])).loss


def llama(**changes):
    config = transformers.LlamaConfig(**TEXT_MODEL, num_key_value_heads=2, **changes)
    return transformers.LlamaForCausalLM(config)


def vision_models():
    vit = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        num_labels=5,
    )
    regnet = transformers.RegNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], groups_width=8, num_labels=5
    )
    return {
        "vit": lambda: transformers.ViTForImageClassification(vit),
        "regnet": lambda: transformers.RegNetForImageClassification(regnet),
    }


def language_models():
    gpt2 = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    t5 = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    mamba = transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)
    return {
        "llama": llama,
        "llama-tied": lambda: llama(tie_word_embeddings=True),
        "gpt2": lambda: transformers.GPT2LMHeadModel(gpt2),
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**TEXT_MODEL)),
        "t5": lambda: transformers.T5ForConditionalGeneration(t5),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**TEXT_MODEL, num_key_value_heads=2, num_local_experts=4)
        ),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**TEXT_MODEL, num_key_value_heads=2)),
        "mamba": lambda: transformers.MambaForCausalLM(mamba),
    }


def build(make):
    torch.manual_seed(3)
    return make().float().train()


@pytest.mark.parametrize("name", language_models())
@own_process
def test_language_model(name):
    assert_trains_like_plain(build(language_models()[name]), language_loss, units=unit_per_layer)


@pytest.mark.parametrize("name", vision_models())
@own_process
def test_vision_model(name):
    assert_trains_like_plain(build(vision_models()[name]), image_loss, units=unit_per_layer)


@pytest.mark.parametrize("units", [unit_per_module, one_unit], ids=lambda units: units.__name__)
@own_process
def test_llama_in_other_units(units):
    assert_trains_like_plain(build(llama), language_loss, units=units)


@own_process
def test_llama_keeps_units_while_they_are_used():
    assert_trains_like_plain(build(llama), language_loss, units=unit_per_layer, strict=False)


@pytest.mark.parametrize("reentrant", [False, True], ids=["non_reentrant", "reentrant"])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@own_process
def test_llama_with_gradient_checkpointing(reentrant, autocast):
    model = build(llama)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_trains_like_plain(model, under_autocast(autocast), units=unit_per_layer)


@own_process
def test_llama_under_autocast():
    assert_trains_like_plain(build(llama), under_autocast(True), units=unit_per_layer)


def under_autocast(on):
    def loss_of(model):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            return language_loss(model)

    return loss_of


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@own_process
def test_llama_computing_in_bfloat16(attention):
    assert_trains_like_plain(
        build(lambda: llama(attn_implementation=attention)), language_loss, units=unit_per_layer, compute=torch.bfloat16
    )


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@own_process
def test_generation_with_a_cache(strict):
    model = build(llama).eval()
    prompt = IDS[:1, :4]
    expected = copy.deepcopy(model).generate(prompt, max_new_tokens=6, do_sample=False)
    Sharded(model, unit_per_layer, strict=strict)
    assert_bit_equal(model.generate(prompt, max_new_tokens=6, do_sample=False), expected, "tokens")


# ---------------------------------------------------------------- torch.nn


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.recurrent = kind(16, 16, 2, batch_first=True, bidirectional=True)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.norm(self.recurrent(x)[0][:, -1])).logsumexp(-1).sum()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
@own_process
def test_recurrent(kind):
    torch.manual_seed(3)
    x = torch.randn(3, 7, 16)
    assert_trains_like_plain(Recurrent(kind), lambda module: module(x), units=unit_per_layer)


class OddUses(nn.Module):
    """Parameters in lists, in einsum, stack and cat, as PReLU slopes, in an embedding bag, in a bilinear form."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(32, 4, 2, 2, 48, 0.0, batch_first=True)
        self.convolution = nn.Conv2d(3, 8, 3)
        self.bilinear = nn.Bilinear(8, 8, 3)
        self.matrices = nn.ParameterList([nn.Parameter(torch.randn(8, 8)) for _ in range(3)])
        self.bag = nn.EmbeddingBag(20, 8)
        self.slope = nn.PReLU()

    def forward(self, x):
        h = self.slope(self.convolution(IMAGES).mean((2, 3)))
        for matrix in self.matrices:
            h = h @ matrix + (matrix * 0.1).sum()
        bags = self.bag(torch.arange(8).view(2, 4))
        traces = sum(torch.einsum("ij,ij->", matrix, matrix) for matrix in self.matrices)
        flat = torch.cat([matrix.view(-1) for matrix in self.matrices])
        return (
            self.transformer(x, x).mean()
            + self.bilinear(h, h).sum()
            + bags.sum()
            + traces
            + torch.stack(list(self.matrices)).norm()
            + flat.exp().mean()
        )


@own_process
def test_odd_uses():
    torch.manual_seed(3)
    x = torch.randn(2, 5, 32)
    assert_trains_like_plain(OddUses(), lambda module: module(x), units=unit_per_layer)


@pytest.mark.parametrize("units", [unit_per_layer, unit_per_module], ids=lambda units: units.__name__)
@pytest.mark.parametrize(
    "parametrize",
    [parametrizations.weight_norm, parametrizations.orthogonal, parametrizations.spectral_norm],
    ids=lambda function: function.__name__,
)
@own_process
def test_parametrization(parametrize, units):
    torch.manual_seed(3)
    x = torch.randn(3, 16)
    model = nn.Sequential(parametrize(nn.Linear(16, 16)), nn.Tanh(), nn.Linear(16, 4))
    assert_trains_like_plain(model, lambda module: module(x).pow(2).sum(), units=units)

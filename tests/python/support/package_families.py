"""Small models of many families, each with a loss: what people shard."""

import torch
import transformers as tf
from torch import nn
from torch.nn.utils import parametrizations

tf.utils.logging.set_verbosity_error()  # remarks on small configurations

VOCABULARY = 61
IDS = torch.arange(20).view(2, 10) * 7 % VOCABULARY
LABELS = torch.arange(20).view(2, 10) * 5 % VOCABULARY
IMAGES = torch.sin(torch.arange(2 * 3 * 16 * 16.0)).view(2, 3, 16, 16)
SOUND = torch.cos(torch.arange(2 * 8 * 24.0)).view(2, 8, 24)
SERIES = torch.sin(torch.arange(3 * 7 * 6.0)).view(3, 7, 6)

TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
DECODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=27,
    max_position_embeddings=32,
    **TOKENS,
)
GROUPED = dict(DECODER, num_key_value_heads=1)  # queries of several heads share keys and values


def causal(config):
    return tf.AutoModelForCausalLM.from_config(config)


def language_loss(model):
    return model(input_ids=IDS, labels=LABELS).loss


def image_loss(model):
    return model(pixel_values=IMAGES, labels=torch.tensor([0, 1])).loss


def speech_loss(model):
    return model(input_features=SOUND, labels=LABELS).loss


def series_loss(model):
    return model(SERIES).square().mean()


def bag_loss(model):
    return model(IDS).square().mean()


class Recurrent(nn.Module):
    """Layers of LSTM keep lists of their own weights."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 9, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(18, 5)

    def forward(self, series):
        return self.head(self.lstm(series)[0])


def parametrized():
    """Weights that are computed from other parameters on use."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 11)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(11, 7)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(7, 7)),
    )


class Bags(nn.Module):
    """Sums of rows of tables, and a table by columns, as in recommenders."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(VOCABULARY, width, mode="sum") for width in (5, 3))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for width in (5, 3))
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(
            torch.cat([table(ids) * gain for table, gain in zip(self.tables, self.gains, strict=True)], dim=1)
        )


def decoders():
    """Language models that predict the next token: name and configuration."""
    return {
        "llama": tf.LlamaConfig(**GROUPED),
        "llama tied": tf.LlamaConfig(**GROUPED, tie_word_embeddings=True),
        "mistral": tf.MistralConfig(**GROUPED, sliding_window=4),
        "qwen2": tf.Qwen2Config(**GROUPED),
        "qwen3": tf.Qwen3Config(**GROUPED, head_dim=14),
        "gemma": tf.GemmaConfig(**GROUPED, head_dim=14),
        "gemma2": tf.Gemma2Config(**GROUPED, head_dim=14, sliding_window=4),
        "gemma3": tf.Gemma3TextConfig(**GROUPED, head_dim=14, sliding_window=4),
        "phi": tf.PhiConfig(**GROUPED),
        "phi3": tf.Phi3Config(**GROUPED),
        "mixtral": tf.MixtralConfig(**GROUPED | {"intermediate_size": 28}, num_local_experts=3),
        "olmo2": tf.Olmo2Config(**GROUPED),
        "gpt_neox": tf.GPTNeoXConfig(**DECODER),
        "gpt2": tf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=32, **TOKENS),
        "opt": tf.OPTConfig(**DECODER, ffn_dim=28, word_embed_proj_dim=32),
        "bloom": tf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2, **TOKENS),
        "falcon": tf.FalconConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, **TOKENS
        ),
        "mamba": tf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=3, **TOKENS),
    }


def families():
    """Name -> (function that makes the model, function of the model that returns its loss)."""
    encoder = dict(DECODER, hidden_dropout_prob=0.1)
    distilbert = tf.DistilBertConfig(vocab_size=VOCABULARY, dim=20, n_layers=2, n_heads=2, hidden_dim=28)
    t5 = tf.T5Config(
        vocab_size=VOCABULARY, d_model=20, d_kv=5, d_ff=28, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    bart = tf.BartConfig(
        vocab_size=VOCABULARY,
        d_model=20,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=28,
        decoder_ffn_dim=28,
        max_position_embeddings=32,
    )
    image = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=27, num_labels=5)
    vit = tf.ViTConfig(**image, image_size=16, patch_size=8)
    whisper = tf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=20,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=28,
        decoder_ffn_dim=28,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=32,
        pad_token_id=0,
        decoder_start_token_id=1,
    )
    result = {name: (lambda config=config: causal(config), language_loss) for name, config in decoders().items()}
    result |= {
        "bert": (lambda: tf.BertForMaskedLM(tf.BertConfig(**encoder)), language_loss),
        "roberta": (lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**encoder)), language_loss),
        "distilbert": (lambda: tf.DistilBertForMaskedLM(distilbert), language_loss),
        "t5": (lambda: tf.T5ForConditionalGeneration(t5), language_loss),
        "bart": (lambda: tf.BartForConditionalGeneration(bart), language_loss),
        "vit": (lambda: tf.ViTForImageClassification(vit), image_loss),
        "whisper": (lambda: tf.WhisperForConditionalGeneration(whisper), speech_loss),
        "lstm": (Recurrent, series_loss),
        "parametrized": (parametrized, series_loss),
        "bags": (Bags, bag_loss),
    }
    return result


def build(make, seed=3):
    torch.manual_seed(seed)
    return make().float().train()


def shard_by_blocks(model, **options):
    """Calls fully_shard on each block, which is a member of a list of modules, and on the model."""
    from fsdp_cpp import fully_shard

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for blocks in reversed(lists):  # inner ones first
        for block in blocks:
            if any(True for _ in block.parameters()):
                fully_shard(block, **options)
    return fully_shard(model, **options)

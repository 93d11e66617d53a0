"""One model of each of many families of the ``transformers`` library, with random weights.

Small, they show how much of the library is captured whole; ``benchmarks.suite`` times some of them large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from .case import ModelCase

_SIZE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 99,
}
_GROUPED = {**_SIZE, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
}
_SPEECH = {
    **_ENCODER_DECODER,
    "max_source_positions": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

# What a setting is in the large model; those that are not here stay as they are.
_LARGE: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "word_embed_proj_dim"), 256),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim"), 1024),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 1024),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 4),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "n_head"), 8),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 8),
    "num_key_value_heads": 4,
    "head_dim": 32,
    "embedding_size": 128,
    "vocab_size": 1000,
    "rotary_dim": 16,
    "attention_types": [[["global", "local"], 2]],
    "patch_size": 16,
    "max_source_positions": 200,
}

Inputs = Callable[[bool, int], dict[str, Any]]


def _tokens(large: bool, variant: int) -> torch.Tensor:
    batch, length = (4, 128) if large else (2, 9)
    return torch.randint(3, 90, (batch - variant, length + 7 * variant))


def _text(large: bool, variant: int) -> dict[str, Any]:
    return {"input_ids": _tokens(large, variant)}


def _translation(large: bool, variant: int) -> dict[str, Any]:
    tokens = _tokens(large, variant)
    return {"input_ids": tokens, "decoder_input_ids": tokens[:, : 64 if large else 5]}


def _speech(large: bool, variant: int) -> dict[str, Any]:
    features = torch.randn(2 - variant, 80, 400 if large else 100)
    return {"input_features": features, "decoder_input_ids": _tokens(large, variant)[:2]}


def _sound(large: bool, variant: int) -> dict[str, Any]:
    return {"input_values": torch.randn(2 - variant, (16000 if large else 3200) + 800 * variant)}


def _images(size: int, large_size: int | None = None) -> Inputs:
    def inputs(large: bool, variant: int) -> dict[str, Any]:
        extent = (large_size or size) if large else size
        return {"pixel_values": torch.randn(1 + 2 * variant, 3, extent, extent)}

    return inputs


# Name, model class, its configuration, its inputs.
_FAMILIES: tuple[tuple[str, str, dict[str, Any], Inputs], ...] = (
    (
        "distilbert",
        "DistilBertModel",
        {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 99},
        _text,
    ),
    ("roberta", "RobertaModel", _SIZE, _text),
    ("albert", "AlbertModel", {**_SIZE, "embedding_size": 16}, _text),
    ("electra", "ElectraModel", {**_SIZE, "embedding_size": 16}, _text),
    ("deberta", "DebertaV2Model", _SIZE, _text),
    ("mobilebert", "MobileBertModel", {"num_hidden_layers": 2, "vocab_size": 99}, _text),
    (
        "opt",
        "OPTForCausalLM",
        {
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 99,
            "word_embed_proj_dim": 32,
        },
        _text,
    ),
    (
        "gpt-neo",
        "GPTNeoForCausalLM",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 99,
            "attention_types": [[["global", "local"], 1]],
        },
        _text,
    ),
    (
        "gpt-j",
        "GPTJForCausalLM",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "rotary_dim": 4},
        _text,
    ),
    ("gpt-neox", "GPTNeoXForCausalLM", _SIZE, _text),
    (
        "bloom",
        "BloomForCausalLM",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99},
        _text,
    ),
    ("mistral", "MistralForCausalLM", _GROUPED, _text),
    (
        "mixtral",
        "MixtralForCausalLM",
        {**_GROUPED, "num_local_experts": 4, "experts_implementation": "batched_mm"},
        _text,
    ),
    ("qwen2", "Qwen2ForCausalLM", _GROUPED, _text),
    ("qwen3", "Qwen3ForCausalLM", _HEADS, _text),
    ("gemma2", "Gemma2ForCausalLM", _HEADS, _text),
    ("phi3", "Phi3ForCausalLM", {**_GROUPED, "pad_token_id": 0}, _text),
    ("bart", "BartForConditionalGeneration", _ENCODER_DECODER, _translation),
    ("whisper", "WhisperModel", _SPEECH, _speech),
    ("wav2vec2", "Wav2Vec2Model", _SIZE, _sound),
    ("clip", "CLIPVisionModel", _VISION, _images(32, 224)),
    (
        "swin",
        "SwinModel",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        _images(32),
    ),
    (
        "convnext",
        "ConvNextModel",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
        _images(32),
    ),
    (
        "segformer",
        "SegformerModel",
        {
            "hidden_sizes": [8, 16, 24, 32],
            "num_attention_heads": [1, 2, 2, 4],
            "depths": [1, 1, 1, 1],
        },
        _images(64),
    ),
)


def _case(name: str, model: str, settings: dict[str, Any], inputs: Inputs) -> ModelCase:
    def build(large: bool) -> torch.nn.Module:
        kind = getattr(transformers, model)
        chosen = {k: _LARGE.get(k, v) for k, v in settings.items()} if large else dict(settings)
        if large and "image_size" in settings:
            chosen["image_size"] = inputs(True, 0)["pixel_values"].shape[-1]
        return kind(kind.config_class(**chosen)).eval()

    return ModelCase(name, build, inputs)


TRANSFORMER_FAMILIES = {row[0]: _case(*row) for row in _FAMILIES}

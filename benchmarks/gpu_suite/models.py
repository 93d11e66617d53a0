"""The models of the suite: full-size ones of ``transformers`` and ``timm`` with random weights.

Batch sizes are those of the PyTorch 2 benchmark suites for inference; training takes half of them.  Nothing
is dropped out, so that results can be compared.  Each model has a tiny variant, to try the harness with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Build = Callable[[bool], torch.nn.Module]
Inputs = Callable[[int, bool], dict[str, torch.Tensor]]

_TINY_VOCABULARY = 100


@dataclass(frozen=True)
class SuiteModel:
    """``build(tiny)`` makes the module in eval mode; ``inputs(batch, tiny)`` keyword arguments on the CPU."""

    batch: int
    build: Build
    inputs: Inputs


def _text(vocabulary: int, *names: str) -> Inputs:
    """512 tokens, as each of the arguments ``names``."""

    def inputs(batch: int, tiny: bool) -> dict[str, torch.Tensor]:
        size, length = (_TINY_VOCABULARY, 8) if tiny else (vocabulary, 512)
        return dict.fromkeys(names or ("input_ids",), torch.randint(5, size - 5, (batch, length)))

    return inputs


def _library(model: str, config: str, tiny_sizes: dict[str, int], **settings: Any) -> Build:
    """A class of ``transformers`` with the configuration's defaults but for ``settings``."""

    def build(tiny: bool) -> torch.nn.Module:
        import transformers

        sizes = {**tiny_sizes, "vocab_size": _TINY_VOCABULARY} if tiny else {}
        chosen = getattr(transformers, config)(**{**settings, **sizes})
        for name, value in vars(chosen).items():
            if "drop" in name and isinstance(value, float):
                setattr(chosen, name, 0.0)
        module: torch.nn.Module = getattr(transformers, model)(chosen)
        return module.eval()

    return build


def _timm(
    name: str, tiny_settings: dict[str, Any] | None = None, tiny_size: int = 64, **settings: Any
) -> tuple[Build, Inputs]:
    """A model of ``timm`` for images of 224 x 224; the tiny variant's are squares of ``tiny_size``."""

    def build(tiny: bool) -> torch.nn.Module:
        import timm

        sizes = {"num_classes": 10, **(tiny_settings or {})} if tiny else {}
        module: torch.nn.Module = timm.create_model(name, pretrained=False, **settings, **sizes)
        _let_all_weights_count(module)
        return module.eval()

    def inputs(batch: int, tiny: bool) -> dict[str, torch.Tensor]:
        size = tiny_size if tiny else 224
        return {"x": torch.randn(batch, 3, size, size)}

    return build, inputs


def _let_all_weights_count(module: torch.nn.Module) -> None:
    """Set weights that start at next to nothing: what they scale would be in no result, right or wrong.

    These are the last norms' of residual branches, the scales of layers, and heads: vectors become 1,
    matrices small random numbers.
    """
    for name, weight in module.named_parameters():
        if not name.endswith("bias") and weight.abs().max() < 1e-3:
            if weight.dim() == 1:
                torch.nn.init.ones_(weight)
            else:
                torch.nn.init.normal_(weight, std=0.02)


_TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_TINY_ENCODER = {**_TINY, "num_attention_heads": 2}
_LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "use_cache": False,
}
_ALBERT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}

SUITE: dict[str, SuiteModel] = {
    "BERT-base": SuiteModel(
        16, _library("BertForMaskedLM", "BertConfig", _TINY_ENCODER), _text(30522)
    ),
    "DistilBERT": SuiteModel(
        16,
        _library(
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2},
        ),
        _text(30522),
    ),
    "ALBERT-base": SuiteModel(
        8,
        _library(
            "AlbertForMaskedLM", "AlbertConfig", {**_TINY_ENCODER, "embedding_size": 16}, **_ALBERT
        ),
        _text(30000),
    ),
    "ELECTRA-small": SuiteModel(
        32,
        _library("ElectraForMaskedLM", "ElectraConfig", {**_TINY_ENCODER, "embedding_size": 16}),
        _text(30522),
    ),
    "GPT-2": SuiteModel(
        4,
        _library(
            "GPT2LMHeadModel",
            "GPT2Config",
            {"n_embd": 32, "n_layer": 2, "n_head": 2},
            use_cache=False,
        ),
        _text(50257),
    ),
    "OPT-125M": SuiteModel(
        4,
        _library(
            "OPTForCausalLM",
            "OPTConfig",
            {**_TINY_ENCODER, "ffn_dim": 64, "word_embed_proj_dim": 32},
            use_cache=False,
        ),
        _text(50272),
    ),
    "T5-small": SuiteModel(
        4,
        _library(
            "T5ForConditionalGeneration",
            "T5Config",
            {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
            use_cache=False,
        ),
        _text(32128, "input_ids", "decoder_input_ids"),
    ),
    "Llama-like": SuiteModel(
        4,
        _library(
            "LlamaForCausalLM", "LlamaConfig", {**_TINY_ENCODER, "num_key_value_heads": 1}, **_LLAMA
        ),
        _text(32000),
    ),
    "ResNet-50": SuiteModel(128, *_timm("resnet50")),
    "ConvNeXt-T": SuiteModel(64, *_timm("convnext_tiny", {"depths": (1, 1, 2, 1)})),
    "MobileNetV3-L": SuiteModel(128, *_timm("mobilenetv3_large_100")),
    "EfficientNet-B0": SuiteModel(128, *_timm("efficientnet_b0")),
    "ViT-S/16": SuiteModel(128, *_timm("vit_small_patch16_224", {"img_size": 64, "depth": 2})),
    "Swin-T": SuiteModel(
        64,
        *_timm(
            "swin_tiny_patch4_window7_224",
            {"depths": (1, 1, 2, 1), "embed_dim": 24},
            224,
            drop_path_rate=0.0,
        ),
    ),
    "MLP-Mixer-B": SuiteModel(64, *_timm("mixer_b16_224", {"img_size": 64})),
    "DenseNet-121": SuiteModel(64, *_timm("densenet121")),
}

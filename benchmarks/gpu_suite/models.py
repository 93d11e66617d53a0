"""The models of the suite: full-size ones of ``transformers`` and ``timm`` with random weights.

Batch sizes are those of the PyTorch 2 benchmark suites for inference; training takes half of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class SuiteModel:
    """``build()`` makes the module in eval mode; ``inputs(batch)`` keyword arguments on the CPU."""

    batch: int
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int], dict[str, Any]]


def _text(vocabulary: int, length: int, *names: str) -> Callable[[int], dict[str, Any]]:
    def inputs(batch: int) -> dict[str, Any]:
        tokens = torch.randint(5, vocabulary - 5, (batch, length))
        return dict.fromkeys(names or ("input_ids",), tokens)

    return inputs


def _library(model: str, config: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """A class of ``transformers`` with the configuration's defaults but for ``settings``."""

    def build() -> torch.nn.Module:
        import transformers

        chosen = getattr(transformers, config)(**settings)
        module: torch.nn.Module = getattr(transformers, model)(chosen)
        return module.eval()

    return build


def _timm(name: str, size: int = 224) -> tuple[Callable[[], torch.nn.Module], Any]:
    def build() -> torch.nn.Module:
        import timm

        module: torch.nn.Module = timm.create_model(name, pretrained=False)
        return module.eval()

    return build, lambda batch: {"x": torch.randn(batch, 3, size, size)}


_LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "use_cache": False,
}

SUITE: dict[str, SuiteModel] = {
    "BERT-base": SuiteModel(16, _library("BertForMaskedLM", "BertConfig"), _text(30522, 512)),
    "DistilBERT": SuiteModel(
        16, _library("DistilBertForMaskedLM", "DistilBertConfig"), _text(30522, 512)
    ),
    "ALBERT-base": SuiteModel(
        8,
        _library(
            "AlbertForMaskedLM",
            "AlbertConfig",
            hidden_size=768,
            intermediate_size=3072,
            num_attention_heads=12,
        ),
        _text(30000, 512),
    ),
    "ELECTRA-small": SuiteModel(
        32, _library("ElectraForMaskedLM", "ElectraConfig"), _text(30522, 512)
    ),
    "GPT-2": SuiteModel(
        4, _library("GPT2LMHeadModel", "GPT2Config", use_cache=False), _text(50257, 512)
    ),
    "OPT-125M": SuiteModel(
        4, _library("OPTForCausalLM", "OPTConfig", use_cache=False), _text(50272, 512)
    ),
    "T5-small": SuiteModel(
        4,
        _library("T5ForConditionalGeneration", "T5Config", use_cache=False),
        _text(32128, 512, "input_ids", "decoder_input_ids"),
    ),
    "Llama-like": SuiteModel(
        4, _library("LlamaForCausalLM", "LlamaConfig", **_LLAMA), _text(32000, 512)
    ),
    "ResNet-50": SuiteModel(128, *_timm("resnet50")),
    "ConvNeXt-T": SuiteModel(64, *_timm("convnext_tiny")),
    "MobileNetV3-L": SuiteModel(128, *_timm("mobilenetv3_large_100")),
    "EfficientNet-B0": SuiteModel(128, *_timm("efficientnet_b0")),
    "ViT-S/16": SuiteModel(128, *_timm("vit_small_patch16_224")),
    "Swin-T": SuiteModel(64, *_timm("swin_tiny_patch4_window7_224")),
    "MLP-Mixer-B": SuiteModel(64, *_timm("mixer_b16_224")),
    "DenseNet-121": SuiteModel(64, *_timm("densenet121")),
}

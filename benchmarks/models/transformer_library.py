"""Unmodified models of the ``transformers`` library with random weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from .case import ModelCase


def _tokens(large: bool, variant: int) -> torch.Tensor:
    batch, length = (4, 128) if large else (2, 9)
    return torch.randint(0, 90, (batch - variant, length + 7 * variant))


def _bert(large: bool) -> torch.nn.Module:
    size = (
        {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
        if large
        else {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 99}
    )
    heads = 6 if large else 4
    return transformers.BertModel(transformers.BertConfig(num_attention_heads=heads, **size)).eval()


def _bert_inputs(large: bool, variant: int) -> dict[str, Any]:
    tokens = _tokens(large, variant)
    mask = torch.ones_like(tokens)
    mask[0, -2:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def _gpt2(large: bool) -> torch.nn.Module:
    size = (
        {"n_layer": 6, "n_embd": 384, "n_head": 6}
        if large
        else {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 99}
    )
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size)).eval()


def _t5(large: bool) -> torch.nn.Module:
    size = (
        {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 4, "d_kv": 64}
        if large
        else {
            "d_model": 32,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "d_kv": 8,
            "vocab_size": 99,
        }
    )
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**size)).eval()


def _t5_inputs(large: bool, variant: int) -> dict[str, Any]:
    tokens = _tokens(large, variant)
    return {"input_ids": tokens, "decoder_input_ids": tokens[:, : tokens.shape[1] // 2]}


def _vit(large: bool) -> torch.nn.Module:
    size = (
        {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
        if large
        else {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
        }
    )
    heads = 6 if large else 4
    return transformers.ViTModel(transformers.ViTConfig(num_attention_heads=heads, **size)).eval()


def _vit_inputs(large: bool, variant: int) -> dict[str, Any]:
    size = 224 if large else 32
    batch = (2 if large else 1) + 2 * variant
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def _llama(large: bool) -> torch.nn.Module:
    size = (
        {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1376}
        if large
        else {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
    )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_attention_heads=8 if large else 4,
            num_key_value_heads=4 if large else 2,
            vocab_size=1000 if large else 99,
            **size,
        )
    ).eval()


def _only_tokens(large: bool, variant: int) -> dict[str, Any]:
    return {"input_ids": _tokens(large, variant)}


TRANSFORMER_LIBRARY_MODELS = (
    ModelCase("bert", _bert, _bert_inputs),
    ModelCase("gpt2", _gpt2, _only_tokens),
    ModelCase("t5", _t5, _t5_inputs),
    ModelCase("vit", _vit, _vit_inputs),
    ModelCase("llama", _llama, _only_tokens),
)

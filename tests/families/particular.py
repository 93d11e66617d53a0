"""Families whose sizes depend on one another in ways that no rule on names tells, each with its inputs.

Every entry is what the library's own tests do: a small configuration written out, a call for each size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .inputs import SIZES

Recipe = Callable[[], tuple[nn.Module, list[dict[str, Any]]]]
Call = Callable[[int, int], dict[str, Any]]

_ATTENTION = {"num_hidden_layers": 2, "num_attention_heads": 2}
_NARROW = {**_ATTENTION, "hidden_size": 32, "intermediate_size": 64}
_GROUPED = {**_NARROW, "num_key_value_heads": 2}
_DECODER = {"hidden_size": 32, "mlp_dim": 32, "iou_head_hidden_dim": 32, **_ATTENTION}


def _tokens(batch: int, length: int, vocabulary: int = 250) -> torch.Tensor:
    return torch.randint(10, vocabulary, (batch, length))


def _recipe(
    model: str, configuration: str, values: Callable[[Any], dict[str, Any]], call: Call
) -> Recipe:
    """A model by the names of its class and its configuration's; ``values`` gets the library."""

    def make() -> tuple[nn.Module, list[dict[str, Any]]]:
        import transformers

        config = getattr(transformers, configuration)(**values(transformers))
        built = getattr(transformers, model)(config).float().eval()
        return built, [call(*size) for size in SIZES]

    return make


def _with_labels(batch: int, length: int, vocabulary: int = 250) -> dict[str, Any]:
    tokens = _tokens(batch, length, vocabulary)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _blt(_: Any) -> dict[str, Any]:
    part = {**_GROUPED, "num_hidden_layers": 1, "vocab_size": 260}
    local = {**part, "hidden_size_global": 64, "cross_attn_k": 2}
    return {
        "vocab_size": 260,
        "encoder_hash_byte_group_vocab": 64,
        "encoder_hash_byte_group_size": [3, 4],
        "patcher_config": part,
        "encoder_config": local,
        "decoder_config": local,
        "global_config": {**_GROUPED, "num_hidden_layers": 1, "hidden_size": 64},
        "num_hidden_layers": 1,
    }


def _kimi(_: Any) -> dict[str, Any]:
    text = {
        **_GROUPED, "model_type": "deepseek_v3", "vocab_size": 300, "moe_intermediate_size": 32,
        "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "head_dim": 8,
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 128,
    }  # fmt: skip
    return {
        "text_config": text,
        "vision_config": {**_NARROW, "pos_emb_height": 4, "pos_emb_width": 4, "patch_size": 4},
        "projection_hidden_size": 32,
        "image_token_id": 290,
        "video_token_id": 291,
        "vision_start_token_id": 292,
        "vision_end_token_id": 293,
    }


def _kimi_call(batch: int, length: int) -> dict[str, Any]:
    tokens = _tokens(batch, length + 4)
    tokens[:, 1:5] = 290
    return {
        "input_ids": tokens,
        "pixel_values": torch.randn(batch * 16, 3, 4, 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch),
        "labels": tokens.clone(),
    }


def _prompted_parts(**encoder: Any) -> dict[str, Any]:
    return {
        "prompt_encoder_config": {
            "hidden_size": 32,
            "patch_size": 16,
            "mask_input_channels": 4,
            **encoder,
        },
        "mask_decoder_config": dict(_DECODER),
    }


def _sam(_: Any) -> dict[str, Any]:
    vision = {
        **_ATTENTION, "hidden_size": 32, "output_channels": 32, "image_size": 64, "patch_size": 16,
        "mlp_dim": 64,
        "window_size": 2, "global_attn_indexes": [1], "num_pos_feats": 16,
    }  # fmt: skip
    return {"vision_config": vision, **_prompted_parts(image_size=64, image_embedding_size=4)}


def _sam_hq(library: Any) -> dict[str, Any]:
    values = _sam(library)
    values["mask_decoder_config"]["vit_dim"] = 32
    return values


def _sam2(_: Any) -> dict[str, Any]:
    backbone = {
        "model_type": "sam2_hiera_det_model", "hidden_size": 16, "num_attention_heads": 1,
        "image_size": [128, 128],
        "patch_kernel_size": [7, 7], "blocks_per_stage": [1, 2, 1, 1],
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8], "window_size_per_stage": [8, 4, 2, 2],
        "window_positional_embedding_background_size": [4, 4], "global_attention_blocks": [2],
    }  # fmt: skip
    vision = {
        "backbone_config": backbone,
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 32,
    }
    return {"vision_config": vision, **_prompted_parts(image_size=128)}


def _sam3_vision() -> dict[str, Any]:
    backbone = {
        **_NARROW, "model_type": "sam3_vit_model", "image_size": 64, "patch_size": 16, "window_size": 2,
        "global_attn_indexes": [1], "pretrain_image_size": 32,
    }  # fmt: skip
    return {
        "backbone_config": backbone,
        "fpn_hidden_size": 32,
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    }


def _sam3(_: Any) -> dict[str, Any]:
    part = {"hidden_size": 32, "num_attention_heads": 2, "dropout": 0.0}
    layers = {**part, "num_layers": 1, "intermediate_size": 32}
    return {
        "vision_config": _sam3_vision(),
        "text_config": {
            **_NARROW, "model_type": "clip_text_model", "vocab_size": 300, "projection_dim": 32,
            "max_position_embeddings": 32, "bos_token_id": 297, "eos_token_id": 298,
        },
        "geometry_encoder_config": layers,
        "detr_encoder_config": layers,
        "detr_decoder_config": {**layers, "num_queries": 5},
        "mask_decoder_config": {**part, "num_upsampling_stages": 2},
    }  # fmt: skip


def _prompted(side: int, labelled: bool = True) -> Call:
    def call(batch: int, _: int) -> dict[str, Any]:
        arguments = {
            "pixel_values": torch.randn(batch, 3, side, side),
            "input_points": torch.rand(batch, 1, 2, 2) * (side - 4),
        }
        if labelled:
            arguments["input_labels"] = torch.ones(batch, 1, 2, dtype=torch.int32)
        return arguments

    return call


def _pix2struct(_: Any) -> dict[str, Any]:
    text = {
        "vocab_size": 300,
        "hidden_size": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
    }
    vision = {
        **_ATTENTION, "hidden_size": 32, "patch_embed_hidden_size": 48, "d_ff": 64, "d_kv": 16, "seq_len": 64,
    }  # fmt: skip
    return {"text_config": {**text, "encoder_hidden_size": 32}, "vision_config": vision}


def _pix2struct_call(batch: int, length: int) -> dict[str, Any]:
    places = torch.stack([torch.arange(length) // 4, torch.arange(length) % 4], -1).float() + 1
    patches = torch.cat([places.expand(batch, -1, -1), torch.randn(batch, length, 48)], -1)
    return {
        "flattened_patches": patches,
        "attention_mask": torch.ones(batch, length),
        "labels": _tokens(batch, length - 4),
    }


def _owl(_: Any) -> dict[str, Any]:
    special = {"bos_token_id": 297, "eos_token_id": 298, "pad_token_id": 0}
    return {
        "text_config": {**_NARROW, **special, "vocab_size": 300, "max_position_embeddings": 16},
        "vision_config": {**_NARROW, "image_size": 64, "patch_size": 16},
        "projection_dim": 32,
    }


def _owl_call(batch: int, _: int) -> dict[str, Any]:
    tokens = _tokens(batch * 2, 8)
    return {
        "input_ids": tokens,
        "pixel_values": torch.randn(batch, 3, 64, 64),
        "attention_mask": torch.ones_like(tokens),
    }


def _hgnet(library: Any) -> Any:
    return library.HGNetV2Config(
        depths=[1, 1, 1, 1], embeddings_size=8, hidden_sizes=[16, 16, 32, 32], stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16, 16, 32],
        stage_mid_channels=[8, 8, 16, 16], stage_out_channels=[16, 16, 32, 32],
        stage_num_blocks=[1, 1, 1, 1], stage_downsample=[False, True, True, True],
        stage_light_block=[False, False, True, True], stage_kernel_size=[3, 3, 5, 5],
        stage_numb_of_layers=[1, 1, 1, 1], out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip


def _d_fine(library: Any) -> dict[str, Any]:
    return {
        "backbone_config": _hgnet(library), "num_queries": 20, "d_model": 32, "encoder_hidden_dim": 32,
        "encoder_in_channels": [16, 32, 32], "decoder_in_channels": [32, 32, 32], "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "decoder_layers": 2,
        "encoder_layers": 1, "decoder_n_points": [2, 2, 2], "num_denoising": 0, "lqe_hidden_dim": 16,
    }  # fmt: skip


def _molmo2(_: Any) -> dict[str, Any]:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 32}
    return {
        "vision_config": {
            **heads, "intermediate_size": 64, "num_hidden_layers": 2, "image_size": [32, 32], "patch_size": 8,
        },
        "adapter_config": {
            **heads, "vision_feature_layer": [1, 0], "intermediate_size": 64, "text_hidden_size": 32,
        },
        "text_config": {
            **heads, "vocab_size": 300, "additional_vocab_size": 16, "num_hidden_layers": 2,
            "intermediate_size": 64, "max_position_embeddings": 128,
        },
        "image_start_token_id": 300, "low_res_image_start_token_id": 301, "image_end_token_id": 302,
        "image_patch_id": 303, "frame_start_token_id": 304, "frame_end_token_id": 305,
    }  # fmt: skip


def _xlstm(_: Any) -> dict[str, Any]:
    return {
        "vocab_size": 300, "hidden_size": 64, "embedding_dim": 64, "num_hidden_layers": 2, "num_blocks": 2,
        "num_heads": 2, "chunk_size": 8, "qk_dim_factor": 1.0, "mode": "inference",
        "autocast_kernel_dtype": "float32",
        "return_last_states": True,
    }  # fmt: skip


def _voxtral_realtime(_: Any) -> dict[str, Any]:
    return {
        "audio_config": {
            **_NARROW, "num_key_value_heads": 2, "num_mel_bins": 16, "head_dim": 16,
            "max_position_embeddings": 64,
            "vocab_size": 300,
        },
        "text_config": {**_GROUPED, "vocab_size": 300, "head_dim": 16, "max_position_embeddings": 128},
    }  # fmt: skip


def _voxtral_realtime_call(batch: int, length: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 16, 8 * length), **_with_labels(batch, length)}


def _edge_tam(_: Any) -> dict[str, Any]:
    backbone = {
        "model_type": "timm_wrapper", "architecture": "repvit_m0_9.dist_450e_in1k", "do_pooling": False,
        "num_classes": 2,
        "model_args": {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3]},
    }  # fmt: skip
    vision = {
        "backbone_config": backbone,
        "backbone_channel_list": [384, 192, 96, 48],
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 32,
    }
    return {"vision_config": vision, **_prompted_parts(image_size=128)}


def _ernie_vl(_: Any) -> dict[str, Any]:
    text = {
        **_GROUPED, "vocab_size": 300, "head_dim": 16, "moe_intermediate_size": [32, 16],
        "moe_num_experts": 4,
        "moe_k": 2, "moe_num_shared_experts": 1, "mlp_layer_types": ["dense", "sparse"],
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
    }  # fmt: skip
    vision = {
        **_ATTENTION,
        "depth": 2,
        "num_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "patch_size": 4,
    }
    return {
        "text_config": text, "vision_config": vision, "image_start_token_id": 290, "image_end_token_id": 291,
        "image_token_id": 292, "video_start_token_id": 293, "video_end_token_id": 294, "video_token_id": 295,
    }  # fmt: skip


def _ernie_vl_call(batch: int, length: int) -> dict[str, Any]:
    tokens = _tokens(batch, length + 6)
    tokens[:, 1], tokens[:, 2:6], tokens[:, 6] = 290, 292, 291
    return {
        "input_ids": tokens,
        "mm_token_type_ids": (tokens == 292).int(),
        "moe_mm_token_type_ids": ((tokens >= 290) & (tokens <= 292)).int(),
        "pixel_values": torch.randn(batch * 16, 48),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch),
        "labels": tokens.clone(),
    }


PARTICULAR: dict[str, Recipe] = {
    "blt/BltForCausalLM": _recipe("BltForCausalLM", "BltConfig", _blt, _with_labels),
    "kimi_k25/Kimi_K25ForConditionalGeneration": _recipe(
        "Kimi_K25ForConditionalGeneration", "Kimi_K25Config", _kimi, _kimi_call
    ),
    "sam/SamModel": _recipe("SamModel", "SamConfig", _sam, _prompted(64, labelled=False)),
    "sam_hq/SamHQModel": _recipe(
        "SamHQModel", "SamHQConfig", _sam_hq, _prompted(64, labelled=False)
    ),
    "sam2/Sam2Model": _recipe("Sam2Model", "Sam2Config", _sam2, _prompted(128)),
    "edgetam/EdgeTamModel": _recipe("EdgeTamModel", "EdgeTamConfig", _edge_tam, _prompted(128)),
    "sam3/Sam3Model": _recipe(
        "Sam3Model",
        "Sam3Config",
        _sam3,
        lambda batch, _: {
            "pixel_values": torch.randn(batch, 3, 64, 64),
            "input_ids": _tokens(batch, 8),
        },
    ),
    "sam3_tracker/Sam3TrackerModel": _recipe(
        "Sam3TrackerModel",
        "Sam3TrackerConfig",
        lambda _: {"vision_config": _sam3_vision(), **_prompted_parts(image_size=64)},
        _prompted(64),
    ),
    "pix2struct/Pix2StructForConditionalGeneration": _recipe(
        "Pix2StructForConditionalGeneration", "Pix2StructConfig", _pix2struct, _pix2struct_call
    ),
    "owlvit/OwlViTForObjectDetection": _recipe(
        "OwlViTForObjectDetection", "OwlViTConfig", _owl, _owl_call
    ),
    "owlv2/Owlv2ForObjectDetection": _recipe(
        "Owlv2ForObjectDetection", "Owlv2Config", _owl, _owl_call
    ),
    "d_fine/DFineForObjectDetection": _recipe(
        "DFineForObjectDetection",
        "DFineConfig",
        _d_fine,
        lambda batch, _: {"pixel_values": torch.randn(batch, 3, 64, 64)},
    ),
    "molmo2/Molmo2ForConditionalGeneration": _recipe(
        "Molmo2ForConditionalGeneration", "Molmo2Config", _molmo2, _with_labels
    ),
    "xlstm/xLSTMForCausalLM": _recipe("xLSTMForCausalLM", "xLSTMConfig", _xlstm, _with_labels),
    "voxtral_realtime/VoxtralRealtimeForConditionalGeneration": _recipe(
        "VoxtralRealtimeForConditionalGeneration",
        "VoxtralRealtimeConfig",
        _voxtral_realtime,
        _voxtral_realtime_call,
    ),
    "ernie4_5_vl_moe/Ernie4_5_VLMoeForConditionalGeneration": _recipe(
        "Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VLMoeConfig", _ernie_vl, _ernie_vl_call
    ),
}
"""Recipes by the name that their family has in the catalogue."""

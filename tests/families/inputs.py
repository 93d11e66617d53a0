"""Example inputs of a model, from the names in its forward's signature; eager decides between layouts."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch

from .configurations import LAYERS, VOCABULARY

SIZES = ((2, 12), (3, 17), (4, 10))
"""Batch and length of the calls: the second has other sizes, the third shows what that compiled for."""

TRIES = 24

ONLY_NEEDED = {
    "past_observed_mask",
    "past_time_features",
    "hidden_states",
    "inputs_embeds",
    "encoder_hidden_states",
}
"""Arguments that are given where they have no default."""


class NoInputsError(Exception):
    """A model that no layout of inputs fits: it says what eager raised first."""


def inputs_of(model: Any, labels: str) -> list[dict[str, Any]]:
    """Keyword arguments for each of :data:`SIZES`."""
    fixed, first_error = None, None
    for tried, layout in enumerate(_layouts(model, labels)):
        if tried == TRIES:
            break
        try:
            first = _fitting(model, layout, SIZES[0])
            fixed = layout
            break
        except Exception as error:  # whatever a model's own code raises of inputs that do not fit
            first_error = first_error or error
    if fixed is None:
        raise NoInputsError(f"{type(first_error).__name__}: {str(first_error)[:300]}")
    found = [first, *(_fitting(model, fixed, size) for size in SIZES[1:])]
    labelled = [_with_labels(model, arguments, labels) for arguments in found]
    return labelled if _taken(model, labelled[0]) else found


def _taken(model: Any, arguments: dict[str, Any]) -> bool:
    """Whether a head has a loss of these labels."""
    try:
        with torch.no_grad():
            model(**arguments)
    except Exception:  # whatever a model's own code raises of labels that do not fit
        return False
    return True


def _layouts(model: Any, labels: str) -> Iterator[dict[str, Any]]:
    """Choices of which optional arguments to give and how images and sounds are laid out."""
    names = set(inspect.signature(model.forward).parameters)
    pixels = {"pixel_values", "pixel_values_videos", "flattened_patches"} & names
    images = ("flat", "4", "5", "padded") if "image_grid_thw" in names else ("4", "5", "padded")
    sounds = ("channels", "rows") if "input_features" in names else ("short", "whole")
    sound = {"input_features", "input_values"} & names
    for both in (True, False):
        for image, audio in itertools.product(
            images if pixels else ("4",), sounds if sound else ("",)
        ):
            yield {"image": image, "audio": audio, "both": both, "labels": labels}
        if not (pixels and "input_ids" in names):
            return


def _fitting(model: Any, layout: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Inputs that eager takes; the placeholders of images in a text are as many as its error says."""
    placeholders = 1 if layout["both"] else 0
    for _ in range(4):
        arguments = _arguments(model, layout, size, placeholders)
        try:
            with torch.no_grad():
                model(**arguments)
            return arguments
        except Exception as error:
            wanted = _features(str(error), size[0])
            if wanted is None or wanted == placeholders:
                raise
            placeholders = wanted
    raise NoInputsError("no number of placeholders fits")


def _features(message: str, batch: int) -> int | None:
    """How many placeholders a text of the batch shall have, by an error about them."""
    found = re.search(r"tokens: *(\d+).*?features:? *(?:torch\.Size\(\[)?(\d+)", message)
    return None if found is None else max(1, int(found[2]) // batch)


def _arguments(
    model: Any, layout: dict[str, Any], size: tuple[int, int], placeholders: int
) -> dict[str, Any]:
    batch, length = size
    parameters = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(batch)
    config = model.config
    text = _part(config, "text_config")
    vision = _part(config, "vision_config")
    makers = {
        "input_ids": lambda: _tokens(config, text, size, placeholders, generator),
        "decoder_input_ids": lambda: _plain_tokens(text, (batch, length - 4), generator),
        "pixel_values": lambda: _pixels(vision, layout, batch, generator),
        "image_grid_thw": lambda: torch.tensor([[1, 4, 4]] * batch),
        "image_sizes": lambda: torch.tensor([[_side(vision)] * 2] * batch),
        "grid_thw": lambda: torch.tensor([[1, 4, 4]] * batch),
        "hidden_states": lambda: _pixels(vision, {"image": "flat"}, batch, generator),
        "feature_attention_mask": lambda: torch.ones(
            batch, _sounds(config, layout, batch, generator).shape[-1], dtype=torch.long
        ),
        "input_features_mask": lambda: torch.ones(
            batch, _sounds(config, layout, batch, generator).shape[-1], dtype=torch.long
        ),
        "bbox": lambda: torch.arange(4).repeat(batch, length, 1) * 10,
        "input_features": lambda: _sounds(config, layout, batch, generator),
        "input_values": lambda: _sounds(config, layout, batch, generator),
        "past_values": lambda: _series(config, size, generator),
        "past_time_features": lambda: _time_features(config, size, generator),
        "past_observed_mask": lambda: torch.ones(_series(config, size, generator).shape),
        "task_inputs": lambda: _plain_tokens(text, (batch, config.task_seq_len), generator),
        "noisy_latents": lambda: torch.randn(batch, length, 64, generator=generator),
        "inputs_embeds": lambda: torch.randn(batch, length, _width(text), generator=generator),
        "encoder_hidden_states": lambda: torch.randn(batch, 6, _width(text), generator=generator),
    }
    wanted = [
        name for name in makers if name in parameters and _gives(name, layout, parameters, config)
    ]
    arguments = {name: makers[name]() for name in wanted}
    if "attention_mask" in parameters and "input_ids" in arguments:
        arguments["attention_mask"] = torch.ones_like(arguments["input_ids"])
        arguments["attention_mask"][-1, -2:] = 0
    if "mm_token_type_ids" in parameters and "input_ids" in arguments and placeholders:
        image = _image_token(config)
        arguments["mm_token_type_ids"] = (arguments["input_ids"] == image).long()
    if layout["labels"] == "classes" and "decoder_input_ids" in parameters:
        arguments["input_ids"][:, -1] = config.eos_token_id  # whose state is classified
    if layout["labels"] == "choices":
        return {name: torch.stack([x, x.flip(0)], 1) for name, x in arguments.items()}
    return arguments


def _gives(name: str, layout: dict[str, Any], parameters: Any, config: Any) -> bool:
    needed = parameters[name].default is inspect.Parameter.empty
    if name == "decoder_input_ids" and layout["labels"] in ("classes", "answers"):
        return needed  # such a head makes them from the others
    if name == "decoder_input_ids":
        return bool(getattr(config, "is_encoder_decoder", False))
    if name in ("pixel_values", "image_sizes") and "input_ids" in parameters:
        return needed or bool(layout["both"])
    if name == "image_grid_thw":
        return layout["image"] == "flat" and bool(layout["both"])
    if name in ONLY_NEEDED:
        return needed
    return True


def _part(config: Any, name: str) -> Any:
    part = getattr(config, name, None)
    return config if part is None or isinstance(part, dict) else part


def _plain_tokens(text: Any, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    vocabulary = min(getattr(text, "vocab_size", None) or VOCABULARY, VOCABULARY)
    return torch.randint(
        min(10, vocabulary // 4), max(vocabulary - 40, vocabulary // 2), shape, generator=generator
    )


def _image_token(config: Any) -> int | None:
    names = ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_pad_id")
    return next(
        (value for name in names if (value := getattr(config, name, None)) is not None), None
    )


def _tokens(
    config: Any, text: Any, size: tuple[int, int], placeholders: int, generator: torch.Generator
) -> torch.Tensor:
    batch, length = size
    image = _image_token(config)
    if image is None or not placeholders:
        return _plain_tokens(text, size, generator)
    tokens = _plain_tokens(text, (batch, length + placeholders), generator)
    tokens[:, 1 : 1 + placeholders] = image
    start = getattr(config, "vision_start_token_id", None)
    if start is not None:
        tokens[:, 0] = start
    return tokens


def _side(vision: Any) -> int:
    side = getattr(vision, "image_size", None) or 64
    return int(
        side if isinstance(side, int) else side[0] if isinstance(side, (list, tuple)) else 64
    )


def _pixels(
    vision: Any, layout: dict[str, Any], batch: int, generator: torch.Generator
) -> torch.Tensor:
    channels, side = getattr(vision, "num_channels", None) or 3, _side(vision)
    if layout["image"] == "flat":
        frames, patch = getattr(vision, "temporal_patch_size", 1), getattr(vision, "patch_size", 14)
        channels = getattr(vision, "in_channels", None) or channels
        return torch.randn(batch * 16, channels * frames * patch * patch, generator=generator)
    frames = getattr(vision, "num_frames", None) or 1
    shape = {
        "4": (batch, channels, side, side),
        "5": (batch, frames, channels, side, side),
        "padded": (batch, 1, 1, channels, side, side),
    }[layout["image"]]
    return torch.randn(shape, generator=generator)


def _sounds(
    config: Any, layout: dict[str, Any], batch: int, generator: torch.Generator
) -> torch.Tensor:
    audio = _part(config, "audio_config")
    audio = _part(audio, "encoder_config")
    bins = next(
        (
            value
            for name in ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim")
            if isinstance(value := getattr(audio, name, None), int)
        ),
        80,
    )
    frames = 2 * (getattr(audio, "max_source_positions", None) or 32)
    length = getattr(audio, "max_length", None) or frames
    shape = {
        "short": (batch, 1600),
        "channels": (batch, bins, frames),
        "rows": (batch, length, bins),
        "whole": (batch, 1, 3200),
    }[layout["audio"]]
    return torch.randn(shape, generator=generator)


def _series(config: Any, size: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    length = getattr(config, "context_length", size[1])
    lags = max(getattr(config, "lags_sequence", None) or [0])
    channels = getattr(config, "num_input_channels", None) or getattr(config, "input_size", 1)
    shape = (size[0], length + lags, channels) if channels > 1 else (size[0], length + lags)
    return torch.randn(shape, generator=generator)


def _time_features(config: Any, size: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    length = _series(config, size, generator).shape[1]
    return torch.randn(size[0], length, config.num_time_features, generator=generator)


def _with_labels(model: Any, arguments: dict[str, Any], labels: str) -> dict[str, Any]:
    """With what the loss compares to, where it is the task's plain one."""
    tokens = arguments.get("decoder_input_ids", arguments.get("input_ids"))
    if labels == "tokens" and tokens is not None:
        return {**arguments, "labels": tokens.clone()}
    batch = next(iter(arguments.values())).shape[0]
    classes = max(getattr(model.config, "num_labels", 1), 1)
    if labels == "classes":
        return {**arguments, "labels": torch.arange(batch) % classes}
    if labels == "places" and tokens is not None:
        return {**arguments, "labels": tokens % classes}
    if labels == "choices":
        return {**arguments, "labels": torch.arange(batch) % 2}
    if labels == "answers":
        return {
            **arguments,
            "start_positions": torch.arange(batch),
            "end_positions": torch.arange(batch) + 2,
        }
    return arguments


def _width(text: Any) -> int:
    return int(getattr(text, "hidden_size", None) or getattr(text, "d_model", None) or 64)


__all__ = ["LAYERS", "SIZES", "NoInputsError", "inputs_of"]

"""One small model of every module of timm and of every family of torchvision, where they are installed."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .inputs import SIZES
from .torchvision_operators import provide

Recipe = Callable[[], tuple[nn.Module, list[dict[str, Any]]]]

_SMALL = (
    "test_", "atto", "femto", "pico", "nano", "zepto", "xxxt", "xxt", "xxs", "xtiny", "tiny", "_t",
    "t0", "_xs", "xcit_n", "n0", "_n", "_mini", "small", "_s", "s0", "18", "b0", "_0", "26", "34",
    "50", "base",
)  # fmt: skip
"""Parts of names, those of the smallest models first."""

_SIDES = (64, 96, 128, 160, 224, 256)
"""Sides of images, the first that a model takes is used."""

_DETECTION_SIDE = 96


def installed(library: str) -> bool:
    """Whether a library of models can be imported."""
    return importlib.util.find_spec(library) is not None


def missing() -> list[str]:
    """What cannot be covered here, and why."""
    return [
        f"{library} is not installed: its families are left out"
        for library in ("timm", "torchvision")
        if not installed(library)
    ]


@functools.cache
def vision_recipes() -> dict[str, Recipe]:
    """Recipes by name: ``timm/resnet18``, ``torchvision/resnet18``."""
    provide()
    recipes: dict[str, Recipe] = {}
    if installed("timm"):
        import timm

        for module in timm.list_modules():
            names = timm.list_models(module=module)
            if names:
                name = min(names, key=_size)
                recipes[f"timm/{name}"] = functools.partial(_timm, name)
    if installed("torchvision"):
        import torchvision

        families: dict[str, list[str]] = {}
        for name in torchvision.models.list_models():
            builder = torchvision.models.get_model_builder(name)
            families.setdefault(builder.__module__, []).append(name)
        for module, names in families.items():
            # Each detector is a program of its own; of the others the smallest stands for its family.
            several = "detection" in module or "segmentation" in module
            for name in names if several else [min(names, key=_size)]:
                recipes[f"torchvision/{name}"] = functools.partial(_torchvision, name)
    return recipes


def _size(name: str) -> tuple[int, int, str]:
    found = next((rank for rank, part in enumerate(_SMALL) if part in name), len(_SMALL))
    return found, len(name), name


def _timm(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    import timm

    fixed = timm.create_model(name, pretrained=False, num_classes=10)
    wanted = fixed.default_cfg.get("input_size", (3, 224, 224))
    takes_size = "img_size" in inspect.signature(type(fixed).__init__).parameters
    for side in (*_SIDES, wanted[-1]):
        try:
            model = fixed
            if takes_size and side != wanted[-1]:
                model = timm.create_model(name, pretrained=False, num_classes=10, img_size=side)
            return _images(model, wanted[0], side)
        except (RuntimeError, AssertionError, ValueError, TypeError, IndexError, ZeroDivisionError):
            continue  # too small for its strides or windows
    raise RuntimeError(f"no size of images fits {name}")


def _images(
    model: nn.Module, channels: int, side: int, frames: int = 0
) -> tuple[nn.Module, list[dict[str, Any]]]:
    name = next(iter(inspect.signature(model.forward).parameters))
    shape = (channels, frames, side, side) if frames else (channels, side, side)
    calls = [{name: torch.randn(batch, *shape)} for batch, _ in SIZES]
    model.eval()
    with torch.no_grad():
        model(**calls[0])
    return model, calls


def _torchvision(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    if "detection" in builder.__module__:
        return _detector(builder(**options, **_sides_of_detection(name)))
    if "video" in builder.__module__:
        return _images(builder(**options), 3, 224 if "mvit" in name or "swin" in name else 64, 16)
    model = builder(**options)
    if "optical_flow" in builder.__module__:
        calls = [
            {"image1": torch.randn(b, 3, 128, 128), "image2": torch.randn(b, 3, 128, 128)}
            for b, _ in SIZES
        ]
        return model.eval(), calls
    for side in _SIDES:
        try:
            return _images(model, 3, side)
        except (RuntimeError, AssertionError, ValueError):
            continue
    raise RuntimeError(f"no size of images fits {name}")


def _sides_of_detection(name: str) -> dict[str, Any]:
    if re.search("ssd", name):
        return {}
    return {"min_size": _DETECTION_SIDE, "max_size": _DETECTION_SIDE}


class _Detector(nn.Module):
    """Takes a batch of images as one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> Any:
        if not self.training:
            return self.model(list(images))
        boxes = torch.tensor([[8.0, 8.0, 40.0, 48.0], [20.0, 30.0, 80.0, 90.0]])
        target: dict[str, torch.Tensor] = {"boxes": boxes, "labels": torch.tensor([1, 2])}
        target = {name: x.to(images.device) for name, x in target.items()}
        if hasattr(getattr(self.model, "roi_heads", None), "mask_predictor"):
            target["masks"] = torch.ones(2, images.shape[-2], images.shape[-1], dtype=torch.uint8)
            target["keypoints"] = torch.rand(2, 17, 3) * 90
        return self.model(list(images), [dict(target) for _ in images])


def _detector(model: nn.Module) -> tuple[nn.Module, list[dict[str, Any]]]:
    calls = [
        {"images": torch.rand(batch, 3, _DETECTION_SIDE, _DETECTION_SIDE)} for batch, _ in SIZES
    ]
    return _Detector(model).eval(), calls

"""torchvision without its compiled operators: declared, and those of detection written with torch's.

Where no build of torchvision fits the installed torch, its Python alone is on the path (``pip install
--no-deps --target``).  It registers meta functions for operators that must exist by then.
"""

from __future__ import annotations

import importlib.util
import sys

import torch

_BOXES = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORMED = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
_GRADIENT = _BOXES.replace("Tensor input, Tensor rois", "Tensor grad, Tensor rois")
_CHOSEN = _GRADIENT.replace("Tensor rois", "Tensor rois, Tensor argmax")
_MAPPED = _GRADIENT.replace("Tensor rois", "Tensor rois, Tensor channel_mapping")
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_BOXES}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_GRADIENT}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_BOXES}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_CHOSEN}, {_SHAPE}) -> Tensor",
    f"ps_roi_align({_BOXES}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_MAPPED}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool({_BOXES}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_MAPPED}, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORMED}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORMED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)

_libraries: list[torch.library.Library] = []


def provide() -> None:
    """Make ``import torchvision`` possible, if it is installed; once a process."""
    if _libraries or importlib.util.find_spec("torchvision") is None:
        return
    if _loads():
        return
    library = torch.library.Library("torchvision", "DEF")
    _libraries.append(library)
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CompositeImplicitAutograd")
    import torchvision.extension

    torchvision.extension._has_ops = lambda: True


def _loads() -> bool:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # an operator does not exist: the library was built for another torch
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


def _nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    order, kept = scores.argsort(descending=True), []
    while order.numel():
        best, rest = order[0], order[1:]
        kept.append(best)
        low = torch.max(boxes[best, :2], boxes[rest, :2])
        high = torch.min(boxes[best, 2:], boxes[rest, 2:])
        common = (high - low).clamp(min=0).prod(-1)
        areas = _area(boxes[best]) + _area(boxes[rest]) - common
        order = rest[common / areas <= threshold]
    return torch.stack(kept) if kept else order


def _area(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _roi_align(
    x: torch.Tensor,
    boxes: torch.Tensor,
    scale: float,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    from torchvision.ops.roi_align import _roi_align as plain

    return plain(x, boxes, scale, height, width, sampling_ratio, aligned)

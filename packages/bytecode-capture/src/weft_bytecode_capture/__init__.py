"""Captures PyTorch programs as FX graphs from CPython bytecode.

``capture(function)(*args)`` runs a function once and gives its graphs, guards and graph breaks.
``compile_frames(function, backend)`` is what a compiler builds on: graphs go to a backend of torch's
protocol, later calls run compiled code wherever the guards hold.
"""

from ._frame_hook import Context as Context
from ._torch.fake_mode_on_demand import FakeModeOnDemand as FakeModeOnDemand
from ._torch.fake_mode_on_demand import made_environment as made_environment
from ._torch.fakes import FakeLayout as FakeLayout
from .capture import CaptureResult as CaptureResult
from .capture import allow_in_graph as allow_in_graph
from .capture import assume_constant_result as assume_constant_result
from .capture import capture as capture
from .capture import compile_frames as compile_frames
from .capture import compile_in as compile_in
from .capture import disable as disable
from .capture import reset as reset
from .capture import substitute_in_graph as substitute_in_graph
from .captured_graph import Backend as Backend
from .captured_graph import CapturedGraph as CapturedGraph
from .captured_graph import DropControlFlow as DropControlFlow
from .captured_graph import DropDataDependence as DropDataDependence
from .captured_graph import GraphBreak as GraphBreak
from .captured_graph import GraphBreakError as GraphBreakError
from .captured_graph import SpecialiseSizes as SpecialiseSizes
from .captured_graph import UnkeptRegion as UnkeptRegion
from .captured_graph import depends_on_data as depends_on_data
from .compiling import is_compiling as is_compiling
from .frame.capture_report import CaptureReport as CaptureReport
from .frame.convert_frame import make_context as make_context
from .frame.failed_guards import failed_guards as failed_guards
from .frame.forks import without_collector as without_collector
from .gradient_rule import GradientRule as GradientRule
from .marks import mark_dynamic as mark_dynamic
from .marks import mark_static as mark_static
from .marks import mark_unbacked as mark_unbacked
from .marks import maybe_mark_dynamic as maybe_mark_dynamic
from .stance import RecompileError as RecompileError
from .stance import set_stance as set_stance
from .symbolic.frame_result import CaptureOptions as CaptureOptions
from .symbolic.graph.known_results import KnownResult as KnownResult
from .symbolic.graph.known_results import KnownResults as KnownResults
from .symbolic.graph.plain_runs import refused_by_torch as refused_by_torch
from .unsupported import Unsupported as Unsupported
from .user_location import UserLocation as UserLocation
from .user_location import running_frames as running_frames
from .warning import warn as warn

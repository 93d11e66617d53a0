"""Scheduling: fusion, stages, loop order and the memory plan."""

from weft_loop_ir.schedule.memory_plan import bytes_outside_arena, plan_memory
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps, step_meets
from weft_loop_ir.schedule.schedule import schedule

__all__ = [
    "ReplacedSteps",
    "ScheduleOptions",
    "bytes_outside_arena",
    "plan_memory",
    "schedule",
    "step_meets",
]

"""Scheduling: fusion, stages, loop order and the memory plan."""

from weft_loop_ir.schedule.memory_plan import bytes_outside_arena as bytes_outside_arena
from weft_loop_ir.schedule.memory_plan import plan_memory as plan_memory
from weft_loop_ir.schedule.options import ScheduleOptions as ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps as ReplacedSteps
from weft_loop_ir.schedule.replaced_steps import step_meets as step_meets
from weft_loop_ir.schedule.schedule import schedule as schedule

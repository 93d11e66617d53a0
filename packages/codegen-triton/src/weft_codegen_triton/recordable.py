"""What of a program can be recorded, and whether its calls may raise errors."""

from __future__ import annotations

from dataclasses import replace

import torch
from weft_loop_ir import ExternCall, Schedule, is_on_several_devices, raises_by_value

from weft_codegen_triton.host.regions import every_step, is_repeatable
from weft_codegen_triton.host.steps_of_each_call import head_length, tail_takes_copies

NOT_RECORDABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Operators with these tags read a result back to the host."""

COMMUNICATES = "_c10d_functional"
"""The namespace of collectives."""


def may_raise(call: ExternCall, asserts_later: bool) -> bool:
    """Whether ``call`` may raise an error that its operands' shapes don't tell, before it returns."""
    operator = call.operator
    waits = any(tag in operator.tags for tag in NOT_RECORDABLE)
    if waits or operator.namespace != "aten":
        return True
    return raises_by_value(call, asserts_later=asserts_later)


def calls_of(schedule: Schedule) -> list[ExternCall]:
    """The calls of operators, those in regions included."""
    return [step for step in every_step(schedule.steps) if isinstance(step, ExternCall)]


def is_recordable(schedule: Schedule) -> bool:
    """Whether calls of one size do the same work, without waiting for the device or for other processes.

    What comes before the recording, on the CPU, may be anything.

    A float that is passed would be recorded as it is in one call.  A process that records a collective
    while another one runs it waits for ever.
    """
    if any(not symbol.symbol.is_integer for symbol in schedule.symbols):
        return False
    schedule = replace(schedule, steps=schedule.steps[head_length(schedule) :])
    if not is_repeatable(schedule) or not tail_takes_copies(schedule):
        return False
    if is_on_several_devices(schedule):
        return False
    operators = [call.operator for call in calls_of(schedule)]
    return not any(
        operator.namespace == COMMUNICATES or tag in operator.tags
        for operator in operators
        for tag in NOT_RECORDABLE
    )

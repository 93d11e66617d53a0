"""Branches and loops of the host program: plain C++ around the steps that they run."""

from __future__ import annotations

from weft_loop_ir import Branch, BufferView, Count, Loop

from weft_codegen_cpp.host.parts import Pointer
from weft_codegen_cpp.host.statements import Statement, joined
from weft_codegen_cpp.host.writer import HostWriter


def print_branch(writer: HostWriter, branch: Branch) -> None:
    """Append the statements of ``branch``."""
    writer.comment(branch.name)
    head = f"if ({_holds(writer, branch.predicate)}) {{"
    blocks = [writer.nested(block) for block in branch.blocks]
    writer.steps.append(joined(head, blocks[0], "} else {", blocks[1], "}"))


def print_loop(writer: HostWriter, loop: Loop) -> None:
    """Append the statements of ``loop``."""
    writer.comment(loop.name)
    body = writer.nested(loop.condition)
    if loop.predicate is not None:
        body.append(Statement((f"if (!{_holds(writer, loop.predicate)}) break;",)))
    body += writer.nested(loop.body)
    writer.steps.append(joined(f"{_head(writer, loop.count)} {{", body, "}"))


def _head(writer: HostWriter, count: Count | None) -> str:
    if count is None:
        return "for (;;)"
    name = f"c.{count.symbol.name}"
    test = ""
    if count.stop is not None:
        test = f"{name} {'<' if count.ascends else '>'} {writer.index(count.stop)}"
    step = writer.index(count.step)
    return f"for ({name} = {writer.index(count.start)}; {test}; {name} += {step})"


def _holds(writer: HostWriter, predicate: BufferView) -> str:
    return f"{Pointer(predicate.buffer)}[{writer.index(predicate.offset)}]"

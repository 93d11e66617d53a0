"""The catalogue of graph breaks: for each kind, why it is one and what a user can do about it.

``python -m weft_bytecode_capture.break_kinds`` prints it as the page ``BREAKS.md``.

What :class:`~weft_bytecode_capture.Unsupported` is raised without, its explanation or hints, comes from here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

OPERATOR_REJECTS = "operator that rejects its arguments"
"""The kind of break where an operator's own checks fail: eager raises the same, in its own words."""


@dataclass(frozen=True)
class BreakKind:
    """An entry of the catalogue; ``hints`` may be empty where nothing short of other code helps."""

    explanation: str
    hints: tuple[str, ...] = ()


_DATA = "the graph runs after capture: what it computes is not known when Python needs it"
_NOT_MODELLED = "the evaluator does not model this part of Python, so CPython runs it"
_OPAQUE = "the evaluator knows nothing about objects of this kind: it can only pass them on"
_OUTLIVES = (
    "the code after the graph needs this object, and there is no code known that rebuilds it"
)
_OUTSIDE = "do it outside the compiled function, or in one marked with weft.disable"
_KEEP_TENSOR = "keep it a tensor: use torch.where, masks or tensor arithmetic instead"
_AT_THE_END = "do it after the last tensor operation: a break costs least at the end"

_TENSORS = {
    "branch on a tensor's value": BreakKind(
        "which way it goes is known only when the graph runs",
        ("use torch.where, or torch.cond", _AT_THE_END),
    ),
    "value of a tensor as a Python object": BreakKind(_DATA, (_KEEP_TENSOR, _AT_THE_END)),
    "number that depends on data": BreakKind(_DATA, (_KEEP_TENSOR,)),
    "decision by a number that depends on data": BreakKind(
        _DATA,
        (
            "say what is known of the number: torch._check(n >= 1), torch._check(n <= size)",
            _KEEP_TENSOR,
        ),
    ),
    "condition on data that does not hold": BreakKind("CPython raises the condition's own error"),
    "number that the graph computes": BreakKind(_DATA, (_KEEP_TENSOR,)),
    "decision by a number that the graph computes": BreakKind(_DATA, (_KEEP_TENSOR,)),
    "use of a number that the graph computes": BreakKind(_DATA, (_KEEP_TENSOR,)),
    "integer that may grow beyond a tensor's": BreakKind(
        "Python computes in whole numbers of any size, a tensor in 64 bits", (_KEEP_TENSOR,)
    ),
    "subscript that the graph computes": BreakKind(_DATA, ("index a tensor instead of a list",)),
    "result whose size depends on data": BreakKind(
        "how large the result is depends on the values of a tensor, and sizes are fixed in a graph",
        ("use torch.where or multiplication with the mask, which keep the size", _AT_THE_END),
    ),
    "operator that cannot be evaluated on fake tensors": BreakKind(
        "capture runs operators on tensors without data, which this one does not support",
        ("give a custom operator a fake implementation: torch.library.register_fake",),
    ),
    "function that stays eager in training": BreakKind(
        "the stages behind capture cannot compute its gradient, and eager can",
        ("call it under torch.no_grad() where no gradient is needed",),
    ),
    "recurrent network that a library computes": BreakKind(
        "the library is given one memory in which all weights of the network lie, and graphs make none",
        (_AT_THE_END,),
    ),
    OPERATOR_REJECTS: BreakKind(
        "the operator's own checks fail: the plain function raises the same error",
        ("correct the arguments; the plain function names the fault",),
    ),
    "argument of an operator": BreakKind(
        "operators in a graph take tensors, plain constants, and lists, tuples and slices of them",
    ),
    "attribute of a tensor": BreakKind(
        "the attribute is not a fact of the tensor's shape, type or device", (_OUTSIDE,)
    ),
    "tensor of unusual kind": BreakKind(
        "of classes with __torch_dispatch__, wrappers are captured where nothing needs a gradient",
        ("convert the tensor before the compiled function",),
    ),
    "tensor that a function gives back": BreakKind(
        "it gives back its argument, or says otherwise than a graph would whether it needs gradients",
        (_OUTSIDE,),
    ),
    "a tensor that is no output of the graph": BreakKind(_OUTLIVES),
    "question about a tensor": BreakKind(
        "another tensor of the same shape, type and device may give another answer", (_OUTSIDE,)
    ),
    "graph output by number": BreakKind(_OUTLIVES),
    "storage of a tensor": BreakKind(
        "graphs know tensors, not the memory behind them", (_OUTSIDE,)
    ),
    "change of a tensor's metadata": BreakKind(
        "a caller's tensor is changed behind the graph: in no branch or loop, and no leaf with gradients",
        ("use the method without the underscore, which gives a view",),
    ),
    "Python function applied to each element": BreakKind(
        "the function runs in Python, on values that only exist when the graph runs",
        ("write it with tensor operations",),
    ),
    "backward pass inside the function": BreakKind(
        "a graph has the gradients of leaves without hooks, by operators that it has itself",
        ("compile the forward pass, and call backward() outside",),
    ),
    "gradients that data decides": BreakKind(
        "the branch taken, or whether a loop has an iteration, says which leaves have gradients",
        ("compile the forward pass, and call backward() outside",),
    ),
    "hook of a tensor": BreakKind(
        "hooks of tensors run in the backward pass, which is not part of this graph",
        ("register it outside the compiled function",),
    ),
    "change of requires_grad": BreakKind(
        "a graph holds no tensor that is given gradients behind it, nor a leaf whose memory others write to",
        ("set it before the call of the compiled function",),
    ),
    "autograd function that needs gradients": BreakKind(
        "a graph holds a backward that computes with tensors alone, from what the forward saved: without "
        "effects on Python objects, random numbers, marked changes in place, or views that are written to",
        ("give the formula with torch.library.custom_op and register_autograd",),
    ),
    "checkpoint with effects": BreakKind(
        "backward runs the function again, and what it changes changes a second time",
        ("keep what it changes out of the checkpoint",),
    ),
    "checkpoint without gradients": BreakKind(
        "reentrant checkpointing warns that nothing will be differentiated, and it shall still do so",
        ("pass use_reentrant=False",),
    ),
    "collective with unusual arguments": BreakKind(
        "a graph communicates dense, contiguous, real tensors without gradients, of sizes that are equal on "
        "all processes of a group that this one belongs to",
        ("use torch.distributed._functional_collectives where gradients are needed",),
    ),
    "fused update of parameters": BreakKind(
        "one call of torch's writes all parameters and their states: nothing is left to compile",
        ("leave fused=True out: the compiled step is fused over all parameters too",),
    ),
    "change of torch's defaults": BreakKind(
        "the code behind it runs under another state than the code before it",
        ("set it before the call of the compiled function",),
    ),
    "operator under changed settings of cuDNN": BreakKind(
        "cuDNN's kernels read settings as they run, and a graph has those of its call",
        ("set them around the call of the compiled function",),
    ),
    "property of the current device": BreakKind(
        "there are GPUs of several kinds, and another one may be current at the next call",
        ("name the device: torch.cuda.get_device_capability(x.device)",),
    ),
    "state of a random number generator": BreakKind(
        "a graph draws from torch's own generators and cannot set or read their state",
        ("seed before the call of the compiled function",),
    ),
    "NumPy array": BreakKind(
        "NumPy computes outside torch, where no graph follows",
        ("use the torch function of the same name",),
    ),
    "file read or written": BreakKind("files are read and written by CPython", (_OUTSIDE,)),
    "setting that may change": BreakKind(
        "nothing tells compiled code when it changes", ("read it before the call",)
    ),
    "dead weak reference": BreakKind("what it refers to, by which it is compared, may be gone"),
    "override of an operator": BreakKind(
        "what __torch_function__ is asked, or answers, is not known during capture",
        ("let the override end in super().__torch_function__",),
    ),
    "method of a tensor": BreakKind("the method depends on more than the tensor", (_OUTSIDE,)),
    "context manager of torch": BreakKind(
        "the mode that it switches cannot be switched inside a graph",
        ("switch it around the call of the compiled function",),
    ),
    "write to an inference tensor outside inference mode": BreakKind(
        "eager refuses most of these writes in its own words, and takes some"
    ),
    "inference mode switched between operators": BreakKind(
        "a graph makes all of its tensors inside torch.inference_mode, or all of them outside",
        ("put the whole function inside the mode",),
    ),
    "call of a scripted function": BreakKind(
        "no Python does the same: it was traced, asks whether it is scripted, or takes no such arguments",
        ("call the plain function",),
    ),
    "call inside torch.jit.trace": BreakKind(
        "torch's own tracer is running", ("trace the plain function",)
    ),
}

_MODULES = {
    "module of unusual kind": BreakKind(
        "scripted modules hold their state where Python does not see it"
    ),
    "module under construction": BreakKind(
        "the module's __init__ has not run to its end", ("construct modules before the call",)
    ),
    "deleted attribute of a module": BreakKind("the imported module lacks the attribute now"),
    "write to a module's dictionary": BreakKind(
        "a global name of the program may mean the entry that globals() or vars() reaches",
        ("assign to the name, which is declared global",),
    ),
    "import of a module not imported before": BreakKind(
        "an import runs the module's code", ("import it at the top of the file",)
    ),
    "import that fails": BreakKind("CPython raises the import's own error"),
}

_CALLS = {
    "call": BreakKind(_OPAQUE, (_OUTSIDE,)),
    "call of a builtin function": BreakKind(
        "the evaluator does not know what it does", (_OUTSIDE,)
    ),
    "call of a cached function": BreakKind(
        "its cache has no answer yet, or whether it has one is known at run time only",
        ("call it by position, with numbers, strings and modules alone",),
    ),
    "call of a disabled function": BreakKind(
        "weft.disable keeps the function out of captured code"
    ),
    "function transform": BreakKind(
        "a level of torch.vmap or torch.func, or a tensor that stands for others in one, leaves the "
        "graph, or is met where the graph cannot hold it",
        ("return from the function what it computes, and keep it nowhere else",),
    ),
    "call with values that are not constant": BreakKind(
        "the call is made during capture, which needs to know all its arguments"
    ),
    "long loop that is not kept as one": BreakKind(
        "written out, its iterations make a graph that would take minutes to compile",
        (
            "loop over a range, or over a tensor's rows",
            "compile a function that is one iteration",
        ),
    ),
    "calls nested too deep": BreakKind(
        "calls are followed to the depth CaptureOptions.inline_depth",
        ("turn a deep recursion into a loop",),
    ),
    "globals of another class": BreakKind(
        "the function's globals are a dict of a class of its own, which may look names up as it likes"
    ),
    "two variables of a name": BreakKind(
        "the variable of a comprehension has the name of one that an inner function keeps",
        ("give the comprehension's variable another name",),
    ),
    "arguments of a builtin class": BreakKind(_NOT_MODELLED),
    "arguments of a builtin function": BreakKind(_NOT_MODELLED),
    "method of a builtin type": BreakKind(_NOT_MODELLED),
    "method of a dict view": BreakKind(_NOT_MODELLED),
    "method of an iterator": BreakKind(_NOT_MODELLED),
    "method of a generator": BreakKind(_NOT_MODELLED),
    "attribute of a generator": BreakKind("frames made during capture are no frames of CPython"),
    "arguments of a generator's method": BreakKind(_NOT_MODELLED),
    "throw() of a value that is no exception": BreakKind(_NOT_MODELLED),
    "traceback of unknown origin": BreakKind(_NOT_MODELLED),
    "coroutine": BreakKind("coroutines are not captured"),
    "function that is left to CPython": BreakKind(
        "each turn of its loop decides by data, or it computes with sparse tensors; what it calls is compiled"
    ),
    "id()": BreakKind("addresses differ from run to run"),
    "sum of floats": BreakKind(
        "CPython 3.12 sums floats with compensation; a plain loop would differ in the last bit"
    ),
    "sequence whose length varies": BreakKind(
        "code behind a break would be compiled for each length",
        ("keep what a loop gathers in a tensor of a fixed size",),
    ),
    "sequence too long": BreakKind("capture does not repeat it element by element"),
    "next()": BreakKind(_OPAQUE),
    "len()": BreakKind(_OPAQUE),
    "copy of a value": BreakKind("copying it would run code that is not known"),
}

_OBJECTS = {
    "attribute read": BreakKind(_OPAQUE),
    "attribute write": BreakKind(_OPAQUE, (_OUTSIDE,)),
    "attribute deletion": BreakKind(_OPAQUE, (_OUTSIDE,)),
    "attribute of a builtin type": BreakKind(_NOT_MODELLED),
    "attribute of a cell": BreakKind(_NOT_MODELLED),
    "class under construction": BreakKind("the class has no resolution order yet"),
    "attribute of a class": BreakKind(_NOT_MODELLED),
    "attribute of a dict view": BreakKind(_NOT_MODELLED),
    "attribute of a function": BreakKind(_NOT_MODELLED),
    "attribute of an exception": BreakKind(_NOT_MODELLED),
    "class definition": BreakKind(
        "a class of which something outlives the graph, or in whose making other code takes part, as a "
        "metaclass or __init_subclass__, is built by CPython",
        ("define the class outside the function",),
    ),
    "deletion of an object with an observable lifetime": BreakKind(
        "its finalizer, or what refers to it weakly, shows when the last reference goes"
    ),
    "instance with a finalizer": BreakKind("CPython runs __del__ where the last reference goes"),
    "construction of an instance": BreakKind(
        "the class is constructed by code that is not Python's, or by a metaclass", (_OUTSIDE,)
    ),
    "container with reading methods of its own": BreakKind(
        "a read-only view of a dict whose class answers reads itself is not taken apart"
    ),
    "instance of a subclass of a scalar": BreakKind(
        "a number or string with a class of its own may behave as anything"
    ),
    "descriptor": BreakKind("the attribute is computed by a descriptor that is not Python code"),
    "pickled object": BreakKind(
        "it says itself how it is pickled, or its bytes are asked for, which CPython makes",
        ("use copy.deepcopy for a copy",),
    ),
    "special method gives a subclass": BreakKind("CPython warns of it, or takes it apart"),
    "empty slot": BreakKind("the slot holds nothing yet: CPython raises its own error"),
    "instance dictionary": BreakKind("the __dict__ of an object is used as a whole"),
    "value is not a constant": BreakKind("a plain constant is needed here during capture"),
    "value of unknown type": BreakKind(_OPAQUE),
    "type of value unknown": BreakKind(_OPAQUE),
    "truth value": BreakKind(_OPAQUE),
    "mapping proxy after a change of its dict": BreakKind(_NOT_MODELLED),
    "deque changed during iteration": BreakKind(_NOT_MODELLED),
    "set changed during iteration": BreakKind(_NOT_MODELLED),
    "dict changed during iteration": BreakKind(_NOT_MODELLED),
    "modules changed during iteration": BreakKind(_NOT_MODELLED),
    "key with methods of its own": BreakKind(
        "its methods may have effects, or it changes as a key: the container that is built after the graph"
        " would show it"
    ),
    "hash of a value": BreakKind(
        "keys of dicts and members of sets are constants, tensors, or objects known by identity"
    ),
    "iteration": BreakKind(_OPAQUE),
    "iteration over a set": BreakKind(
        "its order is not known", ("sort it, or use a dict, which keeps the order",)
    ),
    "identity of equal constants": BreakKind(
        "CPython may or may not share them", ("compare with ==",)
    ),
    "deletion of a key that is not constant": BreakKind(_NOT_MODELLED),
    "isinstance() by a metaclass": BreakKind("the metaclass's own code answers"),
    "isinstance() of an unknown class": BreakKind(_OPAQUE),
    "issubclass() of an unknown class": BreakKind(_OPAQUE),
    "match against an unknown class": BreakKind(_OPAQUE),
    "super() of an unknown class": BreakKind(_OPAQUE),
    "super() of an unrelated class": BreakKind("CPython raises its own error"),
    "super() of one argument": BreakKind(_NOT_MODELLED),
    "formatting of a class with a metaclass": BreakKind("the metaclass's own code may answer"),
}

_CONTROL = {
    "union of types": BreakKind(_OPAQUE),
    "identity of numbers": BreakKind(
        "whether two numbers that sizes determine are one object is known only when the code runs",
        ("compare with ==",),
    ),
    "text of an instance": BreakKind("its class writes the text by code that is not Python's"),
    "set of objects that are not constants": BreakKind(
        "its order, and which members it has, depend on the objects' addresses",
        ("use a dict, which keeps the order",),
    ),
    "opcode": BreakKind("the evaluator has no handler for the instruction"),
    "frame object": BreakKind(
        "it shows the frame that runs, which in captured code is another one"
    ),
    "locals of a frame": BreakKind(
        "it reads or binds the frame's locals as a dict, which captured code does not keep",
        ("name the variables, or give exec and eval dicts of their own",),
    ),
    "changed state that a kernel reads": BreakKind(
        "an operator's kernel in Python names an object that the program has changed, which is written "
        "back behind the graph",
        ("give the operator what it reads as arguments",),
    ),
    "state that a kernel changes": BreakKind(
        "an operator's kernel in Python may change it when the graph runs, and the program reads it "
        "beside the call",
        ("read it in another function than the one that calls the operator",),
    ),
    "weak proxy": BreakKind(_NOT_MODELLED),
    "operator of a builtin type": BreakKind(_NOT_MODELLED),
    "change of the tracer": BreakKind(
        "a tracer or profiler sees the frames that follow as they are written: they run as plain Python",
        ("start it outside the compiled function",),
    ),
    "except*": BreakKind("the group's own split() gives something else than two parts"),
    "exception that a caller handles": BreakKind("it is the context of what is raised here"),
    "raise of an unknown object": BreakKind(_OPAQUE),
    "exception of unknown kind": BreakKind(_OPAQUE),
    "exception class with a constructor": BreakKind(
        "a constructor in Python above one in C that keeps more than the arguments"
    ),
    "exception with unusual arguments": BreakKind(_OPAQUE),
    "text of an exception": BreakKind("the exception writes its own text"),
    "cell without a source": BreakKind(_NOT_MODELLED),
    "empty cell from outside the frame": BreakKind("CPython raises its own error"),
}

_REBUILDING = {
    "value cannot be rebuilt after a graph": BreakKind(_OUTLIVES),
    "exception that leaves the function": BreakKind(
        "CPython raises it, so that its traceback shows every frame"
    ),
    "raised exception outlives the graph": BreakKind(
        "its traceback and context are made by CPython, which raises it"
    ),
    "generator that outlives the graph": BreakKind(
        "a generator in the middle of its function cannot be rebuilt: CPython makes and runs it",
        ("use the generator up before the break, or take a list of it",),
    ),
    "generator dropped while it waits in a try or with block": BreakKind(
        "CPython closes it when nothing refers to it any more, which runs its finally clauses",
        ("use the generator up, or call its close()",),
    ),
    "object that contains itself": BreakKind(
        "an object made by the captured code refers back to itself and outlives the graph"
    ),
    "source that code cannot read": BreakKind(_OUTLIVES),
    "break at an instruction that cannot fail": BreakKind("a fault of weft: please report it"),
    "exception handler around writes": BreakKind(
        "an exception that an operator raises must reach the handler with all that came before it done, and "
        "nothing behind it; what the graph writes here cannot be taken back",
        ("call what writes from a function of its own",),
    ),
    "break before the function's first instruction": BreakKind(
        "an argument cannot be represented: the function runs as plain Python"
    ),
    "break in an except clause": BreakKind("the exception that is handled there is not known"),
    "break while restoring a frame": BreakKind("a value handed over cannot be represented"),
}

_UNROLL = "a loop is unrolled instead, a branch breaks the graph"
_BODY = "the code that stays a region of the graph is evaluated once, for every iteration or either branch"
_BRANCHES = "what the two branches leave must be alike, as one operator gives it"
_COUNTER = "inside a loop that stays a loop its counter is a tensor of the graph"

_REGIONS = {
    **dict.fromkeys(
        ("effect inside a region", "object that a region changes", "switch of a mode inside a region",
         "graph break inside a region", "loop whose test is no tensor in later iterations"),
        BreakKind(f"{_BODY}: no Python object may change in it", (_UNROLL,)),
    ),
    **dict.fromkeys(
        ("jump out of a region", "jump out of a loop on a tensor's value", "return inside a loop",
         "local that a loop deletes", "local that is bound in a loop",
         "local that is unbound after no iteration",
         "tensor whose size differs by iteration", "subscript out of range in some iteration"),
        BreakKind(f"{_BODY}, and each iteration must begin as the last one ended", (_UNROLL,)),
    ),
    **dict.fromkeys(
        ("local that one branch binds", "return in one branch",
         "branches with different stacks", "tensor that differs by branch",
         "value that differs by branch"),
        BreakKind(_BRANCHES, ("bind the same names to tensors of one size and type in both branches",)),
    ),
    "check of data behind a write": BreakKind(
        "a call in which the check fails runs as written, from what was there before the write",
        ("check before tensors are written to",),
    ),
    "list that one branch makes longer": BreakKind(
        "how long it is afterwards depends on data, and a list in a graph has one length",
        (
            "append in both branches, and what counts: xs.append(torch.where(test, x, 0)); kept.append(test)",
            "write to a tensor made before, out[n] = x, and count n += 1 in that branch",
        ),
    ),
    "write to a tensor that is in a list": BreakKind(
        "what a loop appends becomes rows of one tensor, which would not see the write", (_UNROLL,)
    ),
    "loop of another length in each iteration, of which the last is used": BreakKind(
        "what its counter is after it differs with the loop around it", (_UNROLL,)
    ),
    "key or attribute that one branch makes": BreakKind(
        "whether it is there afterwards depends on data",
        ("set it before the branch, to a tensor of the same size and type",),
    ),
    **dict.fromkeys(
        ("arithmetic of a loop's counter", "decision by a loop's counter",
         "use of a loop's counter as a number", "subscript of a loop's counter and other things",
         "subscript from the end of a symbolic size",
         "loop of another length in each call, of which all elements are used",
         "subscript with too many indices", "slice that may be cut short",
         "size that differs by iteration"),
        BreakKind(_COUNTER, ("compute with tensors, or index a tensor, by the counter",)),
    ),
    **dict.fromkeys(
        ("append of something that is no tensor", "append of an expanded tensor",
         "list of a length that depends on data",
         "list of a length that differs by iteration", "list that a loop appends to and looks at"),
        BreakKind("a list that a region appends to becomes one tensor of rows", (_UNROLL,)),
    ),
    **dict.fromkeys(
        ("gradient through a region", "region on this device", "symbolic number in a region"),
        BreakKind("regions of graphs do not have this yet", (_UNROLL,)),
    ),
    **dict.fromkeys(
        ("question about gradients that depend on data", "question about gradients inside a region"),
        BreakKind("whether a tensor has gradients depends on the way that the program takes", (_UNROLL,)),
    ),
    "slice that ends where data says": BreakKind(
        f"{_BODY}: what has another size in each must have one that its counter gives",
        ("mask the rest: where(arange(n) < i, x, 0)", _UNROLL),
    ),
    **dict.fromkeys(
        ("element at a position that data gives, after a write",
         "element at a position that data gives, in a container",
         "write to an element at a position that data gives"),
        BreakKind(
            "in a region x[t] is a copy, and it may be seen that it is no view",
            ("write x[t] = y or x[t] += y, and clone() what is read before a write", _UNROLL),
        ),
    ),
    "container of two names after a conditional": BreakKind(
        "two names that are one list or tuple in a branch would be two after the conditional", (_UNROLL,)
    ),
    "identity of a tensor that a region gives": BreakKind(
        "which object it is depends on the way that the program takes", (_UNROLL,)
    ),
    **dict.fromkeys(
        ("control-flow operator", "loop that carries what is no tensor", "carried tensor that changes",
         "loop whose condition is no tensor", "loop whose body leaves another number of values"),
        BreakKind("the functions given to torch.cond or while_loop cannot be kept as regions"),
    ),
    **dict.fromkeys(
        ("scan whose function gives another number of values", "scan whose function gives no tensor",
         "scan whose function changes sizes or dtypes"),
        BreakKind("the function of a scan gives values like those that it takes"),
    ),
    "associative_scan with unusual arguments": BreakKind(
        "the graph holds scans of tensors of one size, not empty, by constant arguments that eager takes",
        ("expand() the tensors to one size", "combine_mode='generic' on the CPU"),
    ),
    "truth value of a tensor with several elements": BreakKind("CPython raises its own error"),
}  # fmt: skip

BREAK_KINDS: dict[str, BreakKind] = {
    **_TENSORS, **_MODULES, **_CALLS, **_OBJECTS, **_CONTROL, **_REBUILDING, **_REGIONS
}  # fmt: skip
"""The entries by kind."""

_SECTIONS = {
    "Tensors": _TENSORS, "Modules and imports": _MODULES, "Calls": _CALLS, "Objects": _OBJECTS,
    "Control flow and exceptions": _CONTROL, "Objects that outlive a graph": _REBUILDING,
    "Branches and loops kept in the graph": _REGIONS,
}  # fmt: skip


def page() -> str:
    """The catalogue in Markdown."""
    lines = [
        "# Graph breaks",
        "",
        "Why a graph ends before its function does, by kind, and what can be done about it.",
        "`weft.explain` and `fullgraph=True` name the kind and the line. This page is written by",
        "`python -m weft_bytecode_capture.break_kinds`.",
    ]
    for title, kinds in _SECTIONS.items():
        lines += ["", f"## {title}", "", "| kind | why | what to do |", "|---|---|---|"]
        rows = ((kind, entry.explanation, "; ".join(entry.hints)) for kind, entry in kinds.items())
        lines += (f"| {kind} | {why} | {hints} |" for kind, why, hints in rows)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

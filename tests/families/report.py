"""Every family of transformers beside eager: ``python -m tests.families.report [--only REGEX] [--sample N]``.

Each model is checked in a process of its own with a time limit; every outcome is a line of JSON in
``--output``.  ``--backend eager`` captures without compiling.  Exits with 1 if any result is wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import weft

from tests.fuzz.evaluated import EvaluatedCpp
from tests.opinfo.workers import Worker, answer_all

from .catalogue import families, main_families
from .checking import Record, check
from .configurations import LEVELS, tiny
from .inputs import SIZES, NoInputsError, inputs_of
from .particular import PARTICULAR
from .recipes import RECIPES, Recipe
from .vision import missing, vision_recipes

MODEL_SECONDS = 300
MAX_PARAMETERS = 60_000_000


def outcome_of(
    name: str, mode: str, backend: str, device: str = "cpu", sizes: int = len(SIZES)
) -> dict[str, Any]:
    """The record of one model, called with the first ``sizes`` of :data:`SIZES`."""
    torch.manual_seed(0)
    try:
        model, calls = case_of(name)
    except NoInputsError as error:
        return Record(name, mode, backend, "no inputs", str(error)).as_json()
    if backend == "evaluated":
        weft.register_codegen("cpu", EvaluatedCpp)
        backend = "weft"
    return check(name, model, calls[:sizes], mode, backend, device).as_json()


def case_of(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """A model, in evaluation mode, and the arguments of its calls; raises NoInputsError."""
    recipe = RECIPES.get(name) or vision_recipes().get(name) or PARTICULAR.get(name)
    return _family(name) if recipe is None else _made(recipe)


def _made(recipe: Recipe) -> tuple[Any, list[dict[str, Any]]]:
    try:
        return recipe()
    except (RuntimeError, NotImplementedError, ImportError, AttributeError) as error:
        raise NoInputsError(f"{type(error).__name__}: {str(error)[:300]}") from error


def _family(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """A model and its calls from the smallest configuration that eager takes."""
    import transformers
    from transformers import CONFIG_MAPPING

    family = families()[name]
    last = ""
    for level in LEVELS:
        try:
            model_class = getattr(transformers, family.model)
            config = tiny(model_class.config_class or CONFIG_MAPPING[family.kind], level)
            if family.labels == "classes":
                _give_padding(config)
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(config).parameters())
            if size > MAX_PARAMETERS:
                raise NoInputsError(f"{size} parameters at level {level}")
            model = model_class(config).float().eval()
            return model, inputs_of(model, family.labels)
        except Exception as error:  # of the library's own code, on a configuration or an input
            last += f"{level}: {type(error).__name__}: {str(error)[:300]}; "
    raise NoInputsError(last)


def _give_padding(config: Any) -> None:
    """Name the token that a head for sequences looks for the last place before, where there is none."""
    for part in (config, config.get_text_config()):
        if getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0


def serve(options: argparse.Namespace) -> None:
    """Check the models that come on standard input, one a line; a line of JSON each.

    Each runs in a fork, except on a device.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    vision_recipes()
    families()
    for line in sys.stdin:
        name = line.strip()
        if options.device == "cpu":
            print(_answer_of_fork(name, options), flush=True)
            continue
        signal.alarm(options.seconds)  # a device belongs to one process: the next one begins anew
        print(_answer(name, options), flush=True)
        signal.alarm(0)


def _answer(name: str, options: argparse.Namespace) -> str:
    mode, backend = options.serve, options.backend
    try:
        answer = outcome_of(name, mode, backend, options.device, options.sizes)
    except Exception as error:  # of this check itself
        told = f"check: {type(error).__name__}: {error}"[:500]
        answer = Record(name, mode, backend, "error", told).as_json()
    return json.dumps(answer)


def _answer_of_fork(name: str, options: argparse.Namespace) -> str:
    read, write = os.pipe()
    process = os.fork()
    if not process:
        signal.alarm(options.seconds)
        os.write(write, _answer(name, options).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read().decode()
    _, status = os.waitpid(process, 0)
    if answer:
        return answer
    code = os.waitstatus_to_exitcode(status)
    told = "time is up" if code == -signal.SIGALRM else f"the process ended with {code}"
    return json.dumps(Record(name, options.serve, options.backend, "error", told).as_json())


def run(names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The record of every model in every mode."""
    outcomes: list[dict[str, Any]] = []
    for mode in options.modes:
        arguments = ["--serve", mode]
        for name in ("backend", "device", "sizes", "seconds"):
            arguments += [f"--{name}", str(getattr(options, name))]

        def failure(name: str, error: str, mode: str = mode) -> dict[str, Any]:
            return Record(name, mode, options.backend, "error", error).as_json()

        with options.output.open("a") as file:
            outcomes += answer_all(
                names,
                functools.partial(Worker, arguments, "tests.families.report"),
                failure,
                file,
                jobs=options.jobs,
                question_seconds=options.seconds + 60,
                end=time.monotonic() + options.total,
            )
    return outcomes


def table(outcomes: list[dict[str, Any]]) -> str:
    """Counts by mode, and the breaks and fallbacks by how many models have them."""
    lines = [
        "| mode | tried | right | one graph | fell back | wrong | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode in dict.fromkeys(o["mode"] for o in outcomes):
        tried = [o for o in outcomes if o["mode"] == mode and o["outcome"] != "no inputs"]
        kinds = Counter(o["outcome"] for o in tried)
        whole = sum(o["one_graph"] for o in tried)
        eager = sum(bool(o["fallbacks"]) for o in tried)
        counts = len(tried), kinds["right"], whole, eager, kinds["wrong"], kinds["error"]
        lines.append(f"| {mode} | {' | '.join(map(str, counts))} |")
    breaks = Counter(kind for o in outcomes for kind in {b[0] for b in o["breaks"]})
    reasons = Counter(
        re.sub(r"\d+", "N", f.rsplit(": ", 1)[-1])[:90] for o in outcomes for f in o["fallbacks"]
    )
    lines += [
        "",
        "| models | break |",
        "|---|---|",
        *(f"| {n} | {kind} |" for kind, n in breaks.most_common()),
    ]
    lines += [
        "",
        "| times | fallback |",
        "|---|---|",
        *(f"| {n} | {kind} |" for kind, n in reasons.most_common()),
    ]
    return "\n".join(lines)


def main() -> None:
    """Run, print what is not right in one graph, and tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", default="", help="a regular expression of names, as llama/LlamaModel"
    )
    parser.add_argument("--main", action="store_true", help="one class of each configuration")
    parser.add_argument("--sample", type=int, help="so many models, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="+", default=["inference", "training"])
    parser.add_argument("--backend", default="weft")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many calls of a model")
    parser.add_argument("--seconds", type=int, default=MODEL_SECONDS, help="the limit of a model")
    parser.add_argument("--total", type=float, default=math.inf, help="begin none after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=Path("families.jsonl"))
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--serve", help="be a worker process for a mode")
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    for told in missing():
        print(told, file=sys.stderr)
    known = main_families() if options.main else (*families(), *PARTICULAR)
    everything = dict.fromkeys((*known, *RECIPES, *vision_recipes()))
    names = [n for n in everything if re.search(options.only, n)]
    if options.sample is not None:
        names = random.Random(options.seed).sample(names, min(options.sample, len(names)))
    if options.here:
        given = options.backend, options.device, options.sizes
        outcomes = [outcome_of(n, mode, *given) for mode in options.modes for n in names]
    else:
        outcomes = run(names, options)
    for outcome in outcomes:
        if outcome["outcome"] != "right" or not outcome["one_graph"]:
            print(json.dumps(outcome, indent=1))
    print(table(outcomes))
    sys.exit(any(outcome["outcome"] == "wrong" for outcome in outcomes))


if __name__ == "__main__":
    main()

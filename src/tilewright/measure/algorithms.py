"""The algorithms that the vendor's libraries offer for problems, as candidates beside our kernels.

The library answers for a live GPU only, so a child process opens the GPU and asks; the parent opens
none. Without a GPU there are no such candidates, and each offer says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.child import Blob, Child, ChildDied, ChildTimeout, Message, describe_exit, serve
from tilewright.errors import TilewrightError
from tilewright.measure.measurement import problem_text
from tilewright.measure.results import read_problem
from tilewright.measure.sweep import Group
from tilewright.runtime import libraries
from tilewright.runtime.drivers import driver
from tilewright.runtime.offers import offered_configs, why_not

OPENING_SECONDS, ASKING_SECONDS = 120.0, 20.0
"""Longest time for opening the GPU, and for the questions about a problem: cuDNN compiles code to
say what an engine for attention needs."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the libraries offer for a problem: configs, the best guess of each first; or why there
    is none."""

    configs: tuple[Any, ...] = ()
    reason: str = ""


def offered(
    group: Group, problems: Sequence[Any], count: int = libraries.ALGORITHMS
) -> dict[Any, Offer]:
    """The first `count` algorithms that the heuristic of each library offers for each problem on
    the devices of `group`. Never raises for want of a library or of a GPU."""
    this = arch(group.device.arch)
    found: dict[Any, Offer] = {}
    for problem in problems:
        if why := why_not(ops.family(problem.family), problem, this):
            found[problem] = Offer(reason=why)
    left = [problem for problem in problems if problem not in found]
    if not left:
        return found
    place = group.place
    if not group.real or place is None or place.machine:
        return found | dict.fromkeys(left, Offer(reason="no GPU of this machine was asked"))
    message = {
        "problems": [problem_text(problem) for problem in left],
        "arch": this.name,
        "count": count,
    }
    try:
        with Child(__name__, place.variables) as child:
            answer, _ = child.request(message, timeout=OPENING_SECONDS + len(left) * ASKING_SECONDS)
    except (ChildDied, ChildTimeout) as error:
        how = describe_exit(error.returncode) if isinstance(error, ChildDied) else str(error)
        return found | dict.fromkeys(left, Offer(reason=f"the libraries were not asked: {how}"))
    return found | {
        problem: Offer(tuple(map(ops.family(problem.family).parse_name, one["names"])), one["why"])
        for problem, one in zip(left, answer["offers"], strict=True)
    }


def answer(message: Message) -> Message:
    """For each of ``problems``, at most ``count`` names of algorithms of each library on GPU 0, and
    ``why`` there are none."""
    try:
        on = driver(arch(message["arch"]).backend)
    except TilewrightError as error:
        return {"offers": [{"names": [], "why": str(error)} for _ in message["problems"]]}
    offers = []
    for said in message["problems"]:
        problem = read_problem(said, "the request")
        family, this = ops.family(problem.family), arch(message["arch"])
        configs, why = offered_configs(on, 0, family, problem, this, message["count"])
        offers.append({"names": [config.name for config in configs], "why": why})
    return {"offers": offers}


def main() -> None:
    """Answer one parent until it is gone."""

    def handle(message: Message, _blobs: list[bytes]) -> tuple[Message, Sequence[Blob]]:
        return answer(message), ()

    serve(handle)

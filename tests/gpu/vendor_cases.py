"""What the tests of a vendor's algorithms on a GPU share, whichever library has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tilewright import Constraints, verify
from tilewright.arch.detect import live_device
from tilewright.dispatch import Dispatcher
from tilewright.measure.algorithms import Offer, offered
from tilewright.measure.contenders import kernel_bind, results
from tilewright.measure.devices import gpus
from tilewright.measure.sweep import Group
from tilewright.runtime.libraries import ALGORITHMS
from tilewright.tables.row import Row
from tilewright.tables.table import Table


def asked(problems: Sequence[Any], count: int = ALGORITHMS) -> dict[Any, Offer]:
    """What the libraries offer for each problem, asked as a tuning asks."""
    place = gpus()[0]
    return offered(Group(place.device, place.environment, place=place), problems, count)


class Case:
    """A problem with operands on the GPU, and what should come of it.

    scale: of attention, over the usual one.
    """

    def __init__(self, problem: Any, scale: float = 1.0) -> None:
        self.problem = problem
        self.operands = verify.operands_of(problem, 0, "cuda:0")
        if "scale" in self.operands.inputs:
            self.operands.inputs["scale"] *= scale
        self.wanted = verify.reference(problem, self.operands.inputs)

    def bound(self, config: Any, dispatcher: Dispatcher | None = None) -> Callable[[], Any]:
        """A call by a config."""
        bind = kernel_bind(dispatcher or Dispatcher(), config.name, self.problem)
        return bind(self.operands.inputs, self.operands.outputs)

    def reset(self) -> None:
        """Poison the outputs."""
        verify.reset(self.operands, {})

    def computed(self, config: Any, dispatcher: Dispatcher | None = None) -> dict[str, Any]:
        """The outputs of one call, in poisoned memory."""
        self.reset()
        written = results(self.problem, self.operands, self.bound(config, dispatcher)())
        torch.cuda.synchronize()
        return written

    def compared(self, config: Any, written: dict[str, Any] | None = None) -> verify.Check:
        """How outputs compare with what they should be. written: by default what lies in them."""
        found = written or self.operands.written(self.problem)
        return verify.compare_all(self.problem, config, found, self.wanted)

    def check(self, config: Any, dispatcher: Dispatcher | None = None) -> verify.Check:
        """How one call's outputs compare with what they should be."""
        return self.compared(config, self.computed(config, dispatcher))


def check_that_it_repeats(case: Case, config: Any, dispatcher: Dispatcher) -> None:
    """Two calls give the same bits, in another workspace too."""
    before = {name: x.clone() for name, x in case.computed(config, dispatcher).items()}
    dispatcher.workspaces.release()
    again = case.computed(config, dispatcher)
    assert all(torch.equal(before[name], again[name]) for name in before), config.name


def check_in_a_graph(case: Case, config: Any, warm: bool) -> None:
    """A graph holds a call, and is right each time. warm: the call was made before."""
    call = case.bound(config)
    if warm:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for _ in range(2):
        case.reset()
        graph.replay()
        torch.cuda.synchronize()
        check = case.compared(config)
        assert check.ok, f"{config.name}: {check}"


_ANOTHER = """
import json, sys
import torch
from tilewright import ConvProblem, GemmProblem, verify
from tilewright.dispatch import Dispatcher
from tilewright.measure.contenders import kernel_bind
from torch.profiler import ProfilerActivity, profile
problem = eval(sys.argv[1])
operands = verify.operands_of(problem, 0, "cuda:0")
(out,) = operands.outputs.values()
found = {}
for name in json.loads(sys.argv[2]):
    call = kernel_bind(Dispatcher(), name, problem)(operands.inputs, operands.outputs)
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    ran = sorted({e.name for e in seen.events() if "emset" not in e.name})
    found[name] = [ran, out.float().sum().item()]
print(json.dumps(found))
"""


def check_in_fresh_processes(problem: Any, names: Sequence[str]) -> None:
    """In two processes the same kernels of the library run by a name, and give the same bits, and
    other names run others."""
    command = [sys.executable, "-c", _ANOTHER, repr(problem), json.dumps(names)]
    ran = [
        json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True)
            .stdout.splitlines()[-1]
        )
        for _ in range(2)
    ]  # fmt: skip
    print(json.dumps(ran[0], indent=1))
    assert ran[0] == ran[1]
    assert all(kernels for kernels, _ in ran[0].values())
    if len(ran[0]) > 1:
        assert len({tuple(kernels) for kernels, _ in ran[0].values()}) > 1


def table_of(problem: Any, config: Any) -> Table:
    """A tuned table whose one row has a config for a problem."""
    return Table.of(
        [Row(live_device(0), problem, config.name, (), 10.0, (9.9, 10.1), 0.5)], "mine.twt"
    )


def dispatchers(problem: Any, config: Any) -> Iterator[Dispatcher]:
    """Those of a table that has a config for a problem: one that chooses it, and one whose
    `only_ours` leaves it out."""
    for constraints in (Constraints(), Constraints(only_ours=True)):
        found = Dispatcher(tables=table_of(problem, config), constraints=constraints)
        assert (found.select(problem).config == config) != constraints.only_ours
        yield found


def check_that_it_is_passed_over(
    broken: Any, problem: Any, call: Callable[[Dispatcher], Any], log: Callable[[], str]
) -> None:
    """Another kernel answers where the library refuses the one that a table has. call: computes the
    problem. log: what was logged."""
    dispatcher = Dispatcher(tables=table_of(problem, broken))
    call(dispatcher)
    assert "refused to" in log()
    fates = {fate.name: fate for fate in dispatcher.explain(problem).fates}
    assert fates[broken.name].by in ("library", "tuned")


def check_in_threads(call: Callable[[], Any]) -> None:
    """Threads that never used the GPU may call, and get the same bits. call: returns its output."""

    def work(_: int) -> Any:
        found = call()
        torch.cuda.synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(work, range(16))
    assert all(torch.equal(first, other) for other in others)

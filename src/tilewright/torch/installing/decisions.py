"""Which calls of torch are served by kernels of ours, and how often they were."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tilewright import arrays, calls, ops
from tilewright.default import default_dispatcher
from tilewright.errors import TilewrightError
from tilewright.ops.library import library_of
from tilewright.ops.nouns import Call, View
from tilewright.ready import Launched, Repeatable

log = logging.getLogger("tilewright")

Only = Literal["proven", "all"]
"""Which calls are served. proven: those for whose problem a measurement, or a model of
measurements, has a kernel of ours ahead of the vendor's library (`Choice.ahead`). all: those for
which a kernel of ours is chosen."""

KEPT = 4096
"""Most kinds of calls that are remembered for an operator of torch, and most problems that are
counted. Beyond, kinds are decided anew, and problems are counted as one."""

OTHERS = "others"

_MISALIGNED = 15
"""Bits of an address that are zero in every operand that is served: it begins at a multiple of 16
bytes, as what torch allocates does."""

_SERVED = frozenset({torch.float16, torch.bfloat16})
deterministic = torch._C._get_deterministic_algorithms


@dataclass(frozen=True, slots=True)
class Asked:
    """The call of ours that computes what a call of torch asks for.

    op: the operation.
    operands: tensors passed by position.
    keywords: the others, and options and scalars.
    out: tensors for all outputs; None if they are made.
    rival: the kind of the library that torch would call, where tables may know nothing of it: under
        ``proven`` no record may have it ahead. ``""`` where tables decide alone.
    """

    op: str
    operands: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    out: tuple[Any, ...] | None = None
    rival: str = ""

    @property
    def aligned(self) -> bool:
        """Whether each tensor is aligned as decisions have it."""
        others = (x for x in self.keywords.values() if isinstance(x, torch.Tensor))
        tensors = (*self.operands, *others, *(self.out or ()))
        return not any(x.data_ptr() & _MISALIGNED for x in tensors)

    def problem(self) -> Any:
        """The problem that the call states. Raises `BadArgument`."""
        said = calls.spoken(self.op, self.keywords, len(self.out or ()))
        named = dict(zip(said.named, _views(said.named.values()), strict=True))
        out = None if self.out is None else _views(self.out)
        call = Call(_views(self.operands), named, out, dict(said.options))
        return ops.family(self.op).problem_of(call, None)


def _views(tensors: Iterable[Any]) -> tuple[View, ...]:
    return tuple(map(arrays.view, tensors))


def _looks(x: Any) -> Any:
    """What an argument says of a call's kind."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.stride(), x.dtype
    return tuple(x) if isinstance(x, list) else x


def kind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What tells the kinds of calls apart: shapes, strides, dtypes, options, and torch's switch for
    deterministic kernels. None for calls that torch keeps: those in fp32, say, whose precision
    torch's switches decide."""
    first = args[0]
    if first.dtype not in _SERVED:
        return None
    found: list[Any] = [first.get_device(), deterministic()]
    found += map(_looks, args)
    for name, x in kwargs.items():
        found += name, _looks(x)
    return tuple(found)


@dataclass(slots=True)
class Decision:
    """What becomes of calls of one kind: equal shapes, strides, dtypes and options.

    aten: the operator of torch.
    problem: what it is to us, in words; ``""`` for a call that states none.
    kernel: the kernel that serves it; ``""`` where torch computes.
    reason: why.
    kept: whether it holds for all calls of the kind.
    """

    aten: str
    problem: str
    kernel: str
    reason: str
    kept: bool = True


class Decisions:
    """Decides once for each kind of call, serves, and counts. Thread-safe."""

    def __init__(self, only: Only) -> None:
        self.only = only
        self._known: dict[str, dict[Hashable, Decision]] = {}
        self._passed: dict[str, set[Hashable]] = {}
        self._served: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def of(self, aten: str) -> dict[Hashable, Decision]:
        """The decisions for an operator of torch, by what tells the kinds of its calls apart."""
        return self._known.setdefault(aten, {})

    def passed(self, aten: str) -> set[Hashable]:
        """What tells those kinds of calls of an operator of torch apart that are passed on to torch
        unseen."""
        return self._passed.setdefault(aten, set())

    def pass_on(self, passed: set[Hashable], key: Hashable, every: Iterable[Decision]) -> None:
        """Pass calls of the kind `key` on from now on, if `every` decision about them says so."""
        if any(one.kernel or not one.kept for one in every):
            return
        with self._lock:
            if len(passed) >= KEPT:
                passed.clear()
            passed.add(key)
        _within.passed, _within.recipe = passed, None

    @staticmethod
    def forget_last() -> None:
        """Forget what `learn` says of this thread: C++ asks about a call."""
        _within.passed, _within.recipe, _within.asked = None, None, True

    @staticmethod
    def learn(passed: set[Hashable]) -> Any:
        """What becomes of calls of the kind that was asked about since `forget_last`, as
        `passing.cpp` takes it.

        passed: `Decisions.passed` of the operator.
        """
        last, recipe = _within.passed, _within.recipe
        _within.passed, _within.recipe, _within.asked = None, None, False
        return last is passed and (recipe or True)

    def may_repeat(
        self,
        passed: set[Hashable],
        decision: Decision,
        key: Hashable,
        tensors: tuple[Any, ...],
    ) -> None:
        """Let C++ serve calls of the kind `key` as `again` just did, if C++ asks."""
        if not _within.asked:
            return
        found = default_dispatcher().recipe_of((decision.aten, key), tensors)
        if found is not None:
            _within.passed, _within.recipe = passed, (*found, decision)

    def decide(self, aten: str, key: Hashable, asked: Asked | str) -> Decision:
        """Decide about calls of the kind `key`, and keep the decision.

        asked: what such a call asks of us, or why it asks nothing.
        """
        if isinstance(asked, str):
            found = Decision(aten, "", "", asked)
        elif not asked.aligned:  # another call of the kind may be
            why = "an operand does not begin at a multiple of 16 bytes"
            return Decision(aten, "", "", why, kept=False)
        else:
            found = self._decided(aten, asked)
        with self._lock:
            known = self.of(aten)
            if len(known) >= KEPT:
                known.clear()
            known[key] = found
        return found

    def _decided(self, aten: str, asked: Asked) -> Decision:
        problem: Any = asked.op
        try:
            problem = asked.problem()
            planner, first = default_dispatcher().planner, asked.operands[0]
            target = planner.device_for_planning()
            if first.is_cuda:
                target = planner.live(first.get_device())
            proven = self.only == "proven"
            plan = planner.ahead(problem, target) if proven else planner.plan(problem, target)
        except TilewrightError as error:
            return Decision(aten, str(problem), "", str(error))
        if plan is None:
            why = "no measurement has a kernel that is built here ahead of the vendor's library"
            return Decision(aten, str(problem), "", why)
        if proven and asked.rival:
            record = ops.family(asked.op).library_faster(problem, target)
            if record and record.rule == asked.rival:
                return Decision(aten, str(problem), "", f"the library is ahead: {record.reason}")
        why = f"{plan.selector}: {plan.reason}"
        kernel = "" if library_of(plan.config) else plan.config.name
        return Decision(aten, str(problem), kernel, why)

    def again(
        self, decision: Decision, key: Hashable, tensors: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Serve a call of the kind `key` as an earlier one was served, without asking what it asks:
        its outputs. None if there was none on tensors like these.

        tensors: those that the call is given, in order.
        """
        if not decision.kernel or _within.ours:
            return None
        recording = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # torch has recorded the call above
        try:
            made = default_dispatcher().repeat((decision.aten, key), tensors)
        finally:
            torch._C._set_grad_enabled(recording)
        if made is None:
            return None
        self.count(decision)
        return made if isinstance(made, tuple) else (made,)

    def _remember(
        self,
        decision: Decision,
        key: Hashable,
        tensors: tuple[Any, ...],
        asked: Asked,
        made: tuple[Any, ...],
    ) -> None:
        """Let `again` serve calls like one that was just served, if its operands are tensors of the
        call, each passed once. If one is passed twice, nothing says which of two it is next time.
        """
        said = calls.spoken(asked.op, asked.keywords, len(asked.out or ()))
        operands = (*asked.operands, *said.named.values())
        places = {id(x): place for place, x in enumerate(tensors)}
        roots = [places.get(id(x)) for x in operands]
        if len(places) < len(tensors) or said.what is None or None in roots:
            return
        if any(x is not None for x in said.scalars):
            return
        outputs = range(-1, -1 - len(made), -1)
        launched = Launched(said.what, (*operands, *made), (*(r or 0 for r in roots), *outputs))
        call = Repeatable(tensors, (launched,), made, len(made))
        default_dispatcher().remember((decision.aten, key), call)

    def run(
        self,
        decision: Decision,
        asked: Asked,
        key: Hashable = None,
        tensors: tuple[Any, ...] | None = None,
    ) -> tuple[Any, ...] | None:
        """Serve a call: its outputs. None if torch is to; where a kernel cannot be built or
        launched, all such calls are torch's from then on.

        key, tensors: as `again` takes them, which serves such calls then; None for calls that it
            does not serve.
        """
        if _within.ours or not asked.aligned:
            return None
        out: Any = asked.out
        if out is not None and len(out) == 1:
            out = out[0]
        _within.ours = True  # torch's own call may stand in for a kernel that is being built
        try:
            with torch.no_grad():  # torch has recorded the call above
                made = default_dispatcher().run_given(
                    asked.op, asked.operands, out, None, asked.keywords
                )
        except TilewrightError as error:
            log.warning("torch computes %s from now on: %s", decision.problem, error)
            decision.kernel, decision.reason = "", str(error)
            return None
        finally:
            _within.ours = False
        self.count(decision)
        outputs = made if isinstance(made, tuple) else (made,)
        if tensors is not None:
            self._remember(decision, key, tensors, asked, outputs)
        return outputs

    def count(self, decision: Decision, calls: int = 1) -> None:
        """Count calls that were served."""
        key = decision.aten, decision.problem, decision.kernel
        with self._lock:
            if key not in self._served and len(self._served) >= KEPT:
                key = decision.aten, OTHERS, ""
            self._served[key] += calls

    def served(self) -> Sequence[tuple[str, str, str, int]]:
        """Operator, problem, kernel and number of calls of all that was served, the most calls
        first."""
        with self._lock:
            return [(*key, count) for key, count in self._served.most_common()]

    def left(self) -> Sequence[Decision]:
        """The decisions, as far as they are remembered, that torch computes."""
        with self._lock:
            every = [one for known in self._known.values() for one in known.values()]
        found = {(one.aten, one.problem, one.reason): one for one in every if not one.kernel}
        return [*found.values()]


def may_serve(only: Only, families: Sequence[str], on_gpu: bool) -> bool:
    """Whether any problem of these families may be served on a GPU of this process. Where there is
    no GPU, nothing is known, and the answer is yes.

    on_gpu: whether calls on GPUs are; else those on the CPU.
    """
    planner = default_dispatcher().planner
    if only == "all":
        return True
    try:
        count = torch.cuda.device_count() if on_gpu else 0
        targets = [planner.live(i) for i in range(count)] or [planner.device_for_planning()]
    except TilewrightError:
        return True
    return any(planner.knows(family, target) for family in families for target in targets)


class _Within(threading.local):
    """What this thread is doing.

    ours: whether it is serving a call.
    asked: whether C++ asks about a call.
    passed: `Decisions.passed` of the operator of which a kind was last passed on for good, or
        served in a way that may be repeated.
    recipe: how, of the latter: `Dispatcher.recipe_of`, and the decision.
    """

    ours = False
    asked = False
    passed: set[Hashable] | None = None
    recipe: tuple[Any, ...] | None = None


_within = _Within()

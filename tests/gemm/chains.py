"""Chains of GEMMs and other kernels on a few streams, picked by chance, and what they must compute:
for kernels that may start before the kernel before them has ended.

Every value is a small whole number, and every sum of products is exact in fp32, whoever adds it up
in whatever order. So a result is right only if it is equal bit for bit to that of the same
operations done one after another. A kernel that reads an array before the kernel before has written
it, or writes one that the kernel before still reads, changes whole elements.

GEMMs let the next kernel start behind their last loads. What is left of a small one then takes no
longer than the next one's start, so a kernel that does not wait reads the right values all the
same: on an H200, 3,000 chains of GEMMs, half of which did not wait, had no wrong result. So some
operations are ``late``: they let the next kernel start at once, and touch their arrays only `LATE`
nanoseconds after they began. Behind one, each kernel does start early, and has only its wait.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from gemm_cases import config
from late_kernel import EACH, late_copy

from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem
from tilewright.ops.gemm.catalogue import CATALOGUE

ARRAYS, WEIGHTS, STREAMS = 4, 3, 3
LONGEST = 12
"""Operations of a chain."""
CHOICES = ("weights",) * 6 + ("arrays",) * 2 + ("late",) * 3 + ("mm", "copy", "fill", "mix")
"""What an operation may be."""
MODULUS = 31
FORGOTTEN = 50
"""Graphs whose workspaces are kept at most."""
HEAD_START = 100_000
"""Clock cycles that the GPU waits before a chain, in which the host queues it."""
LATE = 20_000
"""Several times what a launch and a small GEMM take."""


def kernels(arch_name: str) -> list[GemmConfig]:
    """Kernels that start early, by every way to share work, and the same without."""
    tile = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4, "num_stages": 4}
    walk = {**tile, "scheduler": "persistent"}
    parts = {**tile, "scheduler": "split_k", "split_k": 2}
    few = {**tile, "tile_m": 128, "tile_n": 32, "scheduler": "tile", "group_m": 1}
    hows: list[dict[str, Any]] = [
        {"pipeline": "gluon_ws", **walk},
        {"pipeline": "gluon_ws", **walk, "num_stages": 8},
        {"pipeline": "gluon_ws", **walk, "swap_ab": True, "tile_m": 16},
        {"pipeline": "gluon_ws", **parts, "reduction": "linear"},
        {"pipeline": "gluon_ws", **parts, "reduction": "atomic"},
        {"pipeline": "gluon_ws", **parts, "reduction": "two_stage"},
        {"pipeline": "tma", **parts, "reduction": "two_stage"},
        {"pipeline": "gluon_ws", **tile, "scheduler": "stream_k", "reduction": "tree"},
        {"pipeline": "gluon_ws", **walk, "tile_m": 128, "num_warps": 8},
        {"pipeline": "gluon_pingpong", **walk, "num_warps": 8},
        {"pipeline": "tma", **walk},
        {"pipeline": "tma", **tile, "scheduler": "stream_k", "reduction": "linear"},
        {"pipeline": "basic", **tile},
        {"pipeline": "small_m", **few},
        {"pipeline": "small_m", **few, "scheduler": "split_k", "split_k": 2, "reduction": "linear"},
        {"pipeline": "small_m_tma", **few},
    ]
    found = [
        config(arch_name, **how, dependent_launch=word)
        for how in hows
        for word in ("none", "wait", "ahead")
    ]
    return [kernel for kernel in found if FAMILY.judge(kernel, arch(arch_name))]


@contextmanager
def without_waits() -> Iterator[None]:
    """Kernels that would load B early start early meanwhile, but never wait. They are built anew,
    so they need a store of their own."""
    known: Any = CATALOGUE
    real = known["PDL"]
    known["PDL"] = lambda c, a: "none" if c.dependent_launch == "ahead" else real(c, a)
    try:
        yield
    finally:
        known["PDL"] = real


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a chain, on stream number `stream`.

    what: ``weights`` (a GEMM with constant weights), ``arrays`` (a GEMM of two arrays), ``mm``
    (torch's, with weights), ``copy``, ``late`` (a copy, as said above), ``fill`` or ``mix``
    (elementwise). kernel: of the first two.
    reads: numbers of arrays. weights: number of the weights. writes: number of an array, none of
    `reads` except under ``mix``.
    """

    what: str
    stream: int
    reads: tuple[int, ...]
    writes: int
    weights: int = 0
    kernel: str = ""
    ahead: bool = False


class Chains:
    """Draws chains, runs them, and compares.

    kernels: those of GEMMs; those that do not serve the size are left out. size: of every matrix,
        which are square.
    """

    def __init__(
        self, dispatcher: Dispatcher, kernels: Sequence[GemmConfig], size: int = 256, seed: int = 0
    ) -> None:
        problem = GemmProblem(size, size, size, constant_b=True)
        this = arch(dispatcher.device_for_planning().arch)
        self._dispatcher = dispatcher
        self._kernels = [k for k in kernels if FAMILY.supports(k, problem, this)]
        self._random = random.Random(seed)
        generator = torch.Generator(device="cuda").manual_seed(seed)
        shape = (ARRAYS, size, size)
        self._pool = torch.randint(
            0, MODULUS, (8, *shape), device="cuda", generator=generator
        ).bfloat16()
        self._arrays, self._wanted = (self._pool[0].clone() for _ in range(2))
        # Each column of B has one element, 1 or -1: the product moves columns of A.
        self._weights = []
        for _ in range(WEIGHTS):
            weights = torch.zeros(size, size, device="cuda", dtype=torch.bfloat16)
            places = torch.randint(0, size, (size, 1), device="cuda", generator=generator)
            signs = torch.randint(0, 2, (size, 1), device="cuda", generator=generator) * 2.0 - 1
            self._weights.append(weights.scatter_(1, places, signs.bfloat16()).T)
        self._streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        torch.cuda.synchronize()  # from here on the weights are constant

    def draw(self) -> list[Op]:
        """A chain. Most operations follow the one before on its stream, and use its arrays."""
        chance = self._random
        streams = chance.choice((1, 1, 2, STREAMS))
        chain: list[Op] = []
        stream = 0
        for _ in range(chance.randrange(2, LONGEST + 1)):
            if chance.random() < 0.3:
                stream = chance.randrange(streams)
            what = chance.choice(CHOICES)
            x, y, z = chance.sample(range(ARRAYS), 3)
            kernel, ahead, reads = "", False, (x,)
            if what in ("weights", "arrays"):
                picked = chance.choice(self._kernels)
                ahead = picked.dependent_launch == "ahead"
                kernel, what = picked.name, "weights" if ahead else what
            if what == "arrays":
                reads = (x, z)
            elif what == "mix":
                reads = (x, y)
            elif what == "fill":
                reads = ()
            chain.append(Op(what, stream, reads, y, chance.randrange(WEIGHTS), kernel, ahead))
        return chain

    def run(self, chain: Sequence[Op]) -> None:
        """Queue a chain behind the current stream's work; the current stream's next work waits for
        it. An operation on another stream waits for those that it conflicts with, by events."""
        main = torch.cuda.current_stream()
        others = {op.stream for op in chain} - {0}
        streams = {0: main, **{n: self._streams[n] for n in others}}
        begun = main.record_event()
        for number in others:
            streams[number].wait_event(begun)
        done: list[tuple[Op, Any]] = []
        for op in chain:
            stream = streams[op.stream]
            for before, event in done:
                touched = {before.writes} & {*op.reads, op.writes} or {op.writes} & {*before.reads}
                if touched and before.stream != op.stream:
                    stream.wait_event(event)
            with torch.cuda.stream(stream) if op.stream else nullcontext():
                self._do(op, self._arrays)
            if others:
                done.append((op, stream.record_event()))
        for number in others:
            main.wait_event(streams[number].record_event())

    def _do(self, op: Op, arrays: torch.Tensor) -> None:
        out = arrays[op.writes]
        if op.what in ("weights", "arrays"):
            a = arrays[op.reads[0]]
            b = self._weights[op.weights] if op.what == "weights" else arrays[op.reads[1]].T
            said = {"constant_b": True} if op.ahead else {}
            self._dispatcher.run_named(op.kernel, a, b, out=out, **said)
        elif op.what == "late":
            grid = (out.numel() // EACH,)
            late_copy[grid](arrays[op.reads[0]], out, LATE, EACH, launch_pdl=True)
        else:
            self._plain(op, arrays, out)
        if op.what == "arrays":
            out.remainder_(MODULUS)

    def _plain(self, op: Op, arrays: torch.Tensor, out: torch.Tensor) -> None:
        if op.what in ("copy", "late"):
            out.copy_(arrays[op.reads[0]])
        elif op.what == "fill":
            out.fill_(op.weights)
        elif op.what == "mix":
            out.sub_(arrays[op.reads[0]]).remainder_(MODULUS)
        else:
            torch.mm(arrays[op.reads[0]], self._weights[op.weights], out=out)

    def _compute(self, chain: Sequence[Op]) -> None:
        """What a chain must leave in the arrays, by torch alone, on one stream."""
        arrays = self._wanted
        for op in chain:
            out = arrays[op.writes]
            if op.what == "weights":
                torch.mm(arrays[op.reads[0]], self._weights[op.weights], out=out)
            elif op.what == "arrays":  # exact: torch may add parts of bf16 products in bf16
                a, b = (arrays[n].float() for n in op.reads)
                out.copy_(a @ b.T).remainder_(MODULUS)
            else:
                self._plain(op, arrays, out)

    def wrong(self, chain: Sequence[Op], replays: int) -> torch.Tensor:
        """How often a chain's result was wrong, on the GPU: run once as it is, and `replays` times
        from a graph, each time on other values."""
        count = torch.zeros((), dtype=torch.int64, device="cuda")
        graph = None
        for turn in range(1 + replays):
            begin = self._pool[self._random.randrange(len(self._pool))]
            self._wanted.copy_(begin)
            self._compute(chain)
            if turn == 1:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.run(chain)
            torch.cuda._sleep(HEAD_START)
            self._arrays.copy_(begin)
            if graph is None:
                self.run(chain)
            else:
                graph.replay()
            count += (self._arrays != self._wanted).any()
        return count

    def forget_graphs(self) -> None:
        """Free the workspaces of graphs, none of which is left."""
        torch.cuda.synchronize()
        self._dispatcher.workspaces.release()


def check(chains: Chains, count: int, replays: int = 9) -> Iterator[tuple[int, int, list[Op]]]:
    """Run `count` chains or a few more, each (1 + replays) times with other values: yields (chains
    so far, wrong results, the chain) after each distinct one."""
    done = 0
    while done < count:
        if done % (FORGOTTEN * (1 + replays)) == 0:
            chains.forget_graphs()
        chain = chains.draw()
        wrong = int(chains.wrong(chain, replays))
        done += 1 + replays
        yield done, wrong, chain

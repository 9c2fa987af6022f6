"""A family that shares no word with GEMM: no rows, no M, fields that may be None, fields that have
the names of results' columns, terms and units of its own, and a scalar that decides nothing.

`plant` makes it one of `ops.families()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from tilewright import ops
from tilewright.errors import BadArgument, UnknownName
from tilewright.jsonfile import convert
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.nearby import Nearby
from tilewright.ops.nouns import Launch, Operand
from tilewright.ops.problem import Problem
from tilewright.space import KernelSpace
from tilewright.verdict import YES, Verdict, no


@dataclass(frozen=True, slots=True, eq=False)
class ToyProblem(Problem):
    """Attention of a kind: `heads` heads of (queries, keys) tokens, scaled."""

    family: ClassVar[str] = "toy"

    tokens: tuple[int, int] = (64, 64)
    heads: int = 1
    scale: float = 1.0
    limit: int | None = None
    window: tuple[int, ...] | None = None
    softcap: float | None = None
    status: str = "causal"
    kernel: int | str = 3
    median_us: float | None = None
    bias: int | float = 0

    def _complete(self) -> None:
        if min(self.tokens) < 1:
            raise BadArgument(f"tokens = {self.tokens} are not all 1 or more")

    def __str__(self) -> str:
        return f"toy {self.tokens[0]}×{self.tokens[1]} of {self.heads}, scale {self.scale}"

    @property
    def work(self) -> dict[str, int]:
        scores = math.prod(self.tokens) * self.heads
        return {"bf16": scores * 128, "exp": scores}

    @property
    def flops(self) -> int:
        return self.work.get("bf16", 0)

    @property
    def min_bytes(self) -> int:
        return sum(self.tokens) * self.heads * 128


@dataclass(frozen=True, slots=True)
class ToyConfig:
    family: ClassVar[str] = "toy"
    pipeline: ClassVar[str] = "basic"

    block: int = 64
    m: int = 1
    split: int | None = None
    status: str = ""

    @property
    def name(self) -> str:
        parts = (f"b{self.block}", f"m{self.m}", self.split and f"s{self.split}", self.status)
        return "_".join(["toy", *filter(None, parts)])


class ToyFamily(Defaults):
    name = "toy"
    problem_type = ToyProblem
    config_type = ToyConfig

    def parse_name(self, name: str) -> ToyConfig:
        _, *parts = name.split("_")
        said: dict[str, Any] = {}
        for part in parts:
            letter = {"b": "block", "m": "m", "s": "split"}.get(part[0])
            said[letter or "status"] = int(part[1:]) if letter else part
        config = ToyConfig(**said)
        if config.name != name:
            raise UnknownName(f"no toy kernel '{name}'")
        return config

    def parse_problem(self, words, arch) -> ToyProblem:
        said = {}
        for word, text in words.items():
            if word == "status":
                said[word] = text
            elif word in ("tokens", "window"):
                said[word] = tuple(map(int, text.split(",")))
            elif word in {f.name for f in fields(ToyProblem)}:
                said[word] = float(text) if "." in text else int(text)
            else:
                raise BadArgument(f"a toy problem has no '{word}'")
        return convert(said, ToyProblem, "words")

    def tuning_key(self, problem: ToyProblem) -> ToyProblem:
        return replace(problem, scale=1.0)

    def nearby(self, problem: ToyProblem) -> Iterable[Nearby]:
        if problem.heads > 1:
            yield Nearby(replace(problem, heads=1), "of one head")

    def axes(self):
        return {"block": 64, "m": 1, "split": None, "status": ""}

    def wildcard(self, axis, arch):
        return (16, 64) if axis == "block" else (1, 2)

    def make_config(self, fields, arch) -> ToyConfig:
        return ToyConfig(**fields)

    def default_space(self, problem, arch):
        return KernelSpace("toy", {"block": [16, 64], "m": [1, 2]})

    def tuning_spaces(self, problem, arch):
        return [self.default_space(problem, arch)]

    def judge(self, config, arch) -> Verdict:
        return YES

    def supports(self, config, problem, arch) -> Verdict:
        if config.block > problem.tokens[0]:
            return no("block", f"has blocks of {config.block} tokens, of {problem.tokens[0]}")
        return YES

    def launch(self, config, problem, device) -> Launch:
        return Launch(())

    def operands(self, problem) -> tuple[Operand, ...]:
        shape = (problem.tokens[0], 64)
        return (
            Operand("q", shape, (64, 1), "bf16"),
            Operand("o", shape, (64, 1), "bf16", role="out"),
        )

    def estimate(self, config, problem, device) -> Estimate:
        scores, softmax = 100.0 / config.block, 3.0 / config.m
        return Estimate(
            max(scores, softmax),
            "scores" if scores > softmax else "exponentials",
            (("scores", scores), ("exponentials", softmax)),
            (f"{problem.heads} heads",),
        )


def plant(monkeypatch) -> ToyFamily:
    """Make the toy a family of this process, while `monkeypatch` lasts."""
    family, of, names = ToyFamily(), ops.family, ops.families()
    monkeypatch.setattr(ops, "families", lambda: (*names, "toy"))
    monkeypatch.setattr(ops, "family", lambda name: family if name == "toy" else of(name))
    return family

"""Configs and problems around those that other tests run: what the rules say of them is recorded.

Each case is one that a test runs (a base), with one field changed, or two. The record,
`verdicts.txt`, has by architecture how many cases each rule decides, and by base a letter for each
of its cases: which rule decides it. So a change of a rule shows which cases now have another
verdict, and cases that are added to other tests change no line of the record.
`RECORD_VERDICTS=yes python -m pytest tests/gemm/test_verdicts.py --selection all` writes it anew,
after a rule was changed on purpose.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import batch_cases
import epilogue_cases
import gemm_cases
import grouped_cases
import lowbit_cases
import operand_cases
import scale_cases

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import TilewrightError
from tilewright.ops.gemm import GemmProblem, sizes
from tilewright.verdict import Verdict

RECORD = Path(__file__).with_name("verdicts.txt")
PART = 8
"""One base of so many is taken: those whose key is a multiple."""
CHANGES = 16
"""How many changes of a base's config are tried, and of its problem."""
LETTERS = ".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
UNSAID = "-"
"""The letter of a change that makes no config or problem."""

EDGES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 512)
CONFIG_FIELDS: dict[str, tuple[Any, ...]] = {
    "tile_m": (1, 2, 4, *EDGES),
    "tile_n": EDGES,
    "tile_k": (8, 16, 32, 64, 128, 256, 512, 1024),
    "num_warps": (1, 2, 3, 4, 8, 12, 16, 32),
    "num_stages": (1, 2, 3, 4, 6, 8, 9, 12, 100),
    "pipeline": (
        "basic", "tma", "tma_ws", "gluon_ws", "gluon_pingpong", "gluon_cdna", "small_m",
        "small_m_tma", "gluon_scaled", "weights", "mx", "preshuffle", "gluon_weights",
    ),
    "scheduler": ("tile", "persistent"),
    "split_k": (2, 4, 64),
    "reduction": ("atomic", "linear", "tree", "two_stage", "cluster"),
    "store": ("direct", "split"),
    "epilogue": ("", "bias", "bias+gelu", "bias+swiglu", "row_scale+col_scale"),
    "alignment": (1, 2, 4, 8, 16),
    "index_bits": (32, 64),
    "swap_ab": (False, True),
    "dependent_launch": ("none", "wait", "ahead"),
    "group_m": (1, 4, 8),
    "pad_m": (False, True),
    "pad_n": (False, True),
    "pad_k": (False, True),
    "layout": ("rcr", "rrr", "ccr", "crr", "rcc", "rsr"),
    "batching": ("none", "strided", "pointers", "nested"),
    "pre_a": ("", "add"),
    "pre_b": ("", "mul"),
    "scale_a": ("", "1x128"),
    "scale_b": ("", "128x128", "1x32-e8m0"),
    "dtype_c": ("bf16", "fp16", "fp32", "int8"),
}  # fmt: skip
SIZES = (1, 7, 8, 16, 63, 64, 72, 128, 129, 1000, 4096, 65536, 2**20, 2**31 - 1)
PROBLEM_FIELDS: dict[str, tuple[Any, ...]] = {
    "m": SIZES,
    "n": SIZES,
    "k": (*SIZES, 0),
    "alignment": (1, 2, 4, 8, 16),
    "layout": ("rcr", "rrr", "ccr", "crr", "rcc"),
    "precision": ("ieee", "tf32"),
    "epilogue": ("", "bias", "bias+swiglu"),
    "batch": (1, 2, 3, 70000),
    "groups": (1, 2, 100, 70000),
    "constant_b": (False, True),
}


def bases(arch_name: str) -> list[tuple[Any, Any]]:
    """What other tests run on an architecture, or would."""
    found = [
        *gemm_cases.cases(arch_name), *gemm_cases.few_rows(arch_name),
        *gemm_cases.sharing(arch_name), *batch_cases.cases(arch_name),
        *batch_cases.nested(arch_name), *epilogue_cases.cases(arch_name),
        *lowbit_cases.cases(arch_name), *operand_cases.combined(arch_name),
        *operand_cases.shuffled(arch_name), *scale_cases.cases(arch_name),
        *scale_cases.few(arch_name), *grouped_cases.cases(arch_name),
        *grouped_cases.epilogues(arch_name),
    ]  # fmt: skip
    if arch(arch_name).cdna is not None:
        found += cdna(arch_name)
    if arch_name == "sm_90":
        found += [*gemm_cases.odd_tiles(), *gemm_cases.by_turns(), *gemm_cases.swapped()]
        found += [*scale_cases.gluon(), *gemm_cases.dependent(), *within_rows()]
    return found


def within_rows() -> list[tuple[Any, Any]]:
    """Kernels by the copy engine on products whose C lies in rows of another array."""
    return [
        (
            gemm_cases.config("sm_90", pipeline="tma", tile_m=64, tile_n=64, tile_k=64),
            GemmProblem(128, n, 256, ldc=n // 8 * 8 + 8),
        )
        for n in range(100, 140)
    ]


def cdna(arch_name: str) -> list[tuple[Any, Any]]:
    """Kernels in Gluon for CDNA, on products of few steps."""
    return [
        (
            gemm_cases.config(
                arch_name, pipeline="gluon_cdna", dtype_a=dtype, scheduler=scheduler, layout=layout,
                tile_m=edge, tile_n=edge, tile_k=64, num_warps=edge // 32, num_stages=2,
            ),
            GemmProblem(512, 512, 64 * steps, dtype_a=dtype, layout=layout),
        )
        for dtype in ("bf16", "fp16", "int8")
        for scheduler in ("tile", "persistent")
        for layout in ("rcr", "crr")
        for edge in (128, 256)
        for steps in (1, 2, 3)
    ]  # fmt: skip


def changed(rng: random.Random, one: Any, fields: dict[str, tuple[Any, ...]]) -> Any:
    """With a field or two changed; None if it cannot be said then."""
    names = [name for name in fields if hasattr(one, name)]
    changes = {name: rng.choice(fields[name]) for name in rng.sample(names, rng.choice((1, 2)))}
    if "split_k" in changes:
        changes["scheduler"] = "split_k"
        changes.setdefault("reduction", "linear")
    elif "reduction" in changes:
        changes["scheduler"] = "stream_k"
    elif "scheduler" in changes:
        changes |= {"split_k": 1, "reduction": "none"}
    known = {name: value for name, value in changes.items() if hasattr(one, name)}
    try:
        return replace(one, **known)
    except TilewrightError:
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """A changed config, or a config for a changed problem, in words; None if it cannot be said."""

    words: str
    verdict: Verdict | None

    @property
    def rule(self) -> str:
        """The rule that decides; ``ok`` for none, `UNSAID` if there is nothing to decide."""
        if self.verdict is None:
            return UNSAID
        return "ok" if self.verdict else self.verdict.rule


@dataclass(frozen=True, slots=True)
class Found:
    """The cases of a base, and the bytes of shared memory of all its changed configs of GEMM that
    may be built."""

    cases: tuple[Case, ...]
    shared_bytes: int


@cache
def found(arch_name: str) -> dict[str, Found]:
    """By base, called by a digest of its words."""
    this, made = arch(arch_name), {}
    shapes = [shape for unit in this.mma for shape in unit.shapes]
    fields = CONFIG_FIELDS | {"mma": ((0, 0, 0), *dict.fromkeys(shapes))}
    for kernel, problem in bases(arch_name):
        key = hashlib.sha256(f"{kernel.name} {problem}".encode()).hexdigest()[:8]
        if int(key, 16) % PART or key in made:
            continue
        rng, family = random.Random(arch_name + key), ops.family(kernel.family)
        cases, room = [], 0
        for _ in range(CHANGES):
            if (other := changed(rng, kernel, fields)) is None:
                cases.append(Case("", None))
                continue
            verdict = family.judge(other, this)
            cases.append(Case(other.name, verdict))
            if verdict and family.name == "gemm":
                room += sizes.shared_memory(other, this)
        for _ in range(CHANGES):
            if (asked := changed(rng, problem, PROBLEM_FIELDS)) is None:
                cases.append(Case("", None))
                continue
            words = f"{kernel.name} for {asked} alignment {asked.alignment}"
            cases.append(Case(words, family.supports(kernel, asked, this)))
        made[key] = Found(tuple(cases), room)
    return made


@dataclass(frozen=True, slots=True)
class Record:
    """What was recorded: the rule of each letter; by architecture and base the rules that decided,
    and the bytes."""

    letters: dict[str, str]
    rules: dict[str, dict[str, tuple[tuple[str, ...], int]]]

    @classmethod
    def read(cls, text: str) -> Record:
        letters: dict[str, str] = {}
        rules: dict[str, dict[str, tuple[tuple[str, ...], int]]] = {}
        for line in text.splitlines():
            kind, *words = line.split()
            if kind == "letter":
                letters[words[0]] = words[1]
            elif kind == "arch":
                here = rules.setdefault(words[0], {})
            elif kind == "base":
                key, codes, room = words
                here[key] = tuple(letters[code] for code in codes), int(room)
        return cls(letters, rules)


def written(names: Iterable[str], known: Mapping[str, str]) -> str:
    """The record of the present verdicts. known: rules by letter, which keep their letters."""
    names = list(names)
    every = {case.rule for name in names for of in found(name).values() for case in of.cases}
    letters = {rule: letter for letter, rule in known.items()} or {"ok": "."}
    letters[UNSAID] = UNSAID
    free = (letter for letter in LETTERS if letter not in letters.values())
    letters |= {rule: next(free) for rule in sorted(every - letters.keys())}
    lines = [f"letter {letter} {rule}" for rule, letter in letters.items()]
    for name in names:
        made = found(name)
        counts = Counter(case.rule for of in made.values() for case in of.cases)
        lines.append(f"arch {name}")
        lines += [f"rule {rule} {counts[rule]}" for rule in letters if counts[rule]]
        for key, of in sorted(made.items()):
            codes = "".join(letters[case.rule] for case in of.cases)
            lines.append(f"base {key} {codes} {of.shared_bytes}")
    return "\n".join(lines) + "\n"


def differences(name: str, recorded: Record) -> list[str]:
    """What is said otherwise than before of the bases that are in the record, a line each."""
    told, counts = [], Counter[str]()
    for key, (rules, room) in recorded.rules[name].items():
        if (now := found(name).get(key)) is None:
            continue
        for before, case in zip(rules, now.cases, strict=True):
            if case.rule != before:
                counts[f"{before} to {case.rule}"] += 1
                now_is = "nothing" if case.verdict is None else str(case.verdict)
                told.append(f"{case.words}: was {before}, is {now_is}")
        if now.shared_bytes != room and not any(
            case.rule != before for before, case in zip(rules, now.cases, strict=True)
        ):
            names = ", ".join(case.words for case in now.cases[:CHANGES] if case.verdict)
            told.append(f"shared memory in all was {room}, is {now.shared_bytes}: {names}")
    return [*(f"{change}: {count} cases" for change, count in counts.most_common()), *told]

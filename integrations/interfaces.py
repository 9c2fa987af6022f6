"""What our packages, and the fakes that they are tested with, take from a framework; and whether
its releases have it.

A release's answers are kept in `interfaces/`, so that a comparison needs no release. `check.py`
writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frameworks import FAKES, FOLDER, PACKAGES
from signatures import Tree, covers, fits, taken

SNAPSHOTS = FOLDER / "interfaces"
PEERS = {
    "vllm.v1.attention.backend.AttentionImpl:do_kv_cache_update": (
        "vllm.v1.attention.backends.triton_attn.TritonAttentionImpl:do_kv_cache_update"
    ),
}
"""Methods that a framework calls although no base class has them, and a class that shows how."""
HOOKED = {
    "sglang": {
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod:apply": "linear",
        "sglang.kernels.ops.gemm.fp8_scaled_mm": "scaled_mm",
        "sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod:apply": "experts",
    }
}
"""Functions of a framework that ours are hooked around, and ours in our package's ``hooks``: they
are given the original first."""


def package(framework: str) -> tuple[Tree, list[str]]:
    """Our package for a framework, and its modules."""
    name = PACKAGES[framework]
    source = FOLDER / name.replace("_", "-") / "src"
    return Tree(source), sorted(f"{name}.{f.stem}" for f in (source / name).glob("[!_]*.py"))


def wants(framework: str) -> Iterator[tuple[str, str, bool]]:
    """What must be in a release: (question, our signature or "", whether it is a fake's).

    A question is a dotted path, or a class's path, a colon and the name of a member.
    """
    for path, method, ours in taken(*package(framework), framework):
        question = f"{path}:{method}" if method else path
        yield PEERS.get(question, question), ours, False
    for question, name in HOOKED.get(framework, {}).items():
        hooks = package(framework)[0].module(f"{PACKAGES[framework]}.hooks")
        assert hooks is not None
        yield question, hooks.functions[name].partition(", ")[2], False
    tree = Tree(FAKES)
    for file in sorted((FAKES / framework).rglob("*.py")):
        name = ".".join(file.relative_to(FAKES).with_suffix("").parts).removesuffix(".__init__")
        module = tree.module(name)
        assert module is not None
        for function, theirs in module.functions.items():
            if not function.startswith("_"):
                yield f"{name}.{function}", theirs, True
        for made, one in module.classes.items():
            if not made.startswith("_"):
                for method, theirs in one.methods.items():
                    yield f"{name}.{made}:{method}", theirs, True
                for field in one.fields:
                    yield f"{name}.{made}:{field}", "", True


def answer(release: Tree, question: str) -> str | None:
    """What a release has under that name: a signature, or the word for what else it is; None for
    nothing."""
    path, _, member = question.partition(":")
    if release.module(path) is not None:
        return "module"
    home = release.home(path)
    module = None if home is None else release.module(home[0])
    if home is None or module is None:
        return None
    if member:
        return release.member(*home, member)
    if home[1] in module.functions:
        return module.functions[home[1]]
    if home[1] in module.classes:
        return "class"
    return "value" if home[1] in module.values else None


def problems(framework: str, answers: Mapping[str, Any], version: str) -> Iterator[str]:
    """What does not fit a release, by its answers."""
    for question, ours, fake in wants(framework):
        if question not in answers:
            yield f"nobody has asked {version} for {question}; run integrations/check.py"
            continue
        theirs = answers[question]
        theirs = theirs[version] if isinstance(theirs, dict) else theirs
        method = question.partition(":")[2]
        if theirs is None:
            if fake or not method:
                yield f"{version} has no {question}"
            elif not method.startswith("_"):
                yield f"{question} overrides nothing of {version}"
        elif ours and not (covers(theirs, ours) if fake else fits(ours, theirs)):
            whose = "the fake" if fake else "ours"
            yield f"{question} of {version} is ({theirs}); {whose} is ({ours})"


def ask(framework: str, releases: Mapping[str, Path]) -> dict[str, Any]:
    """The answers of releases, each a folder, by version: one answer where all agree."""
    trees = {version: Tree(folder) for version, folder in releases.items()}
    made: dict[str, Any] = {}
    for question in sorted({question for question, _, _ in wants(framework)}):
        found = {version: answer(tree, question) for version, tree in trees.items()}
        one = set(found.values())
        made[question] = one.pop() if len(one) == 1 else found
    return made


def kept(framework: str) -> dict[str, Any]:
    """The snapshot of a framework's releases."""
    found: dict[str, Any] = json.loads((SNAPSHOTS / f"{framework}.json").read_text("utf-8"))
    return found


def keep(framework: str, snapshot: Mapping[str, Any]) -> None:
    """Write a snapshot."""
    SNAPSHOTS.mkdir(exist_ok=True)
    text = json.dumps(snapshot, indent=1, sort_keys=True) + "\n"
    (SNAPSHOTS / f"{framework}.json").write_text(text, "utf-8")

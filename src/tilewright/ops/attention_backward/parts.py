"""From a config to its kernels and their launch: the same for every pipeline, from its record."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.arguments import Context
from tilewright.ops.attention.operands import lse_shape
from tilewright.ops.attention.source import kernel_source
from tilewright.ops.attention_backward import pipelines
from tilewright.ops.attention_backward.arguments import (
    ARGUMENTS,
    CONSTANTS,
    OWN_LENGTHS,
    aligned,
    described_type,
)
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.nouns import Argument, Descriptor, KernelSource, Launch, Step, Temporary

KERNELS = "tilewright.ops.attention_backward.kernels"


def sources(config: AttentionBackwardConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    found = {}
    for part in pipelines.of(config).parts:
        if part.runs(config):
            described = {
                name: f"tensordesc<{DTYPES[described_type(config, name)].triton}"
                f"[{', '.join(map(str, box))}]>"
                for name, box in part.boxes(config).items()
            }
            constants = {name: CONSTANTS[name](config) for name in part.constants}
            for name, made in part.own_constants.items():
                constants[name] = made(config, arch)
            found[part.name] = kernel_source(
                config,
                (f"{KERNELS}.{part.module}", part.name, part.language),
                part.arguments,
                constants,
                described,
                part.options(config, arch),
                ARGUMENTS,
                aligned(config),
            )
    return found


def launch(
    config: AttentionBackwardConfig, problem: AttentionBackwardProblem, device: Device
) -> Launch:
    """The launch of `config` for `problem` on `device`; a part that has nothing to do is left
    out."""
    given: object = config
    context = Context(given, problem, device)  # type: ignore[arg-type]  # it has what is read
    record = pipelines.of(config)
    steps = []
    for part in record.parts:
        if not part.runs(config) or not (groups := part.grid(config, problem)):
            continue
        boxes = part.boxes(config)
        described = {
            name: Descriptor(
                name, described_type(config, name), view.shape, view.strides, boxes[name]
            )
            for name, view in part.views(config, problem).items()
        }
        arguments: list[Argument] = []
        for name in part.arguments:
            one = ARGUMENTS[name]
            if name in described:
                arguments.append(described[name])
            elif one.passed(given):  # type: ignore[arg-type]
                arguments += one.values(context)
        steps.append(Step((groups, 1, 1), tuple(arguments), part.name))
    read = {name for part in record.parts if part.runs(config) for name in part.arguments}
    shape = lse_shape(problem)
    temporaries = [*record.temporaries(config, problem)]
    if "delta" in read:
        temporaries.append(Temporary("delta", shape, "fp32"))
    if "bias" in config.words:
        temporaries += [Temporary(name, shape, "fp32") for name in ("tops", "logs")]
    if "order" in read and config.words.intersection(OWN_LENGTHS):
        temporaries.append(Temporary("order", (2, problem.batch), "int32"))
    if "dslopes" in config.words:
        temporaries.append(Temporary("distances", shape, "fp32"))
    return Launch(tuple(steps), tuple(temporaries))

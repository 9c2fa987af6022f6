"""Every overload of every family's operator passes torch's own check of operators."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch  # noqa: E402, F401
from tilewright import ops  # noqa: E402
from tilewright.torch.said import NOTHING, Said  # noqa: E402

OURS = torch.ops.tilewright
BY_VALUE, OF_SCHEMA = "test_aot_dispatch_dynamic", "test_schema"
CHECKS = (OF_SCHEMA, "test_autograd_registration", "test_faketensor", BY_VALUE)


@dataclass(frozen=True)
class Case:
    """A call: operands by position and by keyword, and what else it says."""

    op: str
    operands: tuple[tuple[int, ...] | torch.Tensor, ...]
    said: Said = NOTHING
    numbers: tuple[float, ...] = ()
    trains: bool = True

    def tensors(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [
            x.clone() if isinstance(x, torch.Tensor) else torch.randn(x, generator=generator)
            for x in self.operands
        ]

    def arguments(self, tensors=None, **changes):
        said = replace(self.said, **changes).text
        return (self.tensors() if tensors is None else tensors, said, list(self.numbers) or None)


def whole(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


HEADS = (1, 4, 2, 16)
APART = Said(scalars=("scale",), options=(("window", (None, None)),), numbers=("window.0",))
CASES = {
    "gemm": Case("gemm", ((4, 16), (16, 8))),
    "gemm, bias": Case(
        "gemm", ((4, 16), (16, 8), (8,)), Said(named=("bias",), options=(("epilogue", "bias"),))
    ),
    "grouped_gemm": Case("grouped_gemm", ((4, 16), (2, 16, 8), whole(2, 4))),
    "grouped_gemm, weights": Case("grouped_gemm", ((16, 6), (6, 8), whole(2, 6))),
    "grouped_gemm, columns": Case("grouped_gemm", ((2, 16, 8), (8, 6), whole(2, 6))),
    "attention": Case("attention", (HEADS, HEADS, HEADS), APART, (0.3, 2)),
    "attention_backward": Case(
        "attention_backward", (HEADS, HEADS, HEADS, HEADS, (1, 2, 4), HEADS), trains=False
    ),
    "conv": Case("conv", ((1, 8, 5, 5), (8, 8, 3, 3))),
    "merge_states": Case("merge_states", ((3, 2, 2, 16), (3, 2, 2)), trains=False),
    "causal_conv": Case("causal_conv", ((1, 8, 6), (8, 4))),
}

UPDATE = Said(options=(("direction", "update"),), written=(1,))
IN_PLACE = {
    "attention": Case(
        "attention",
        (HEADS, (1, 8, 2, 16), (1, 8, 2, 16), HEADS, HEADS, whole(2)),
        Said(named=("new_k", "new_v", "kv_used"), written=(1, 2)),
    ),
    "attention_backward": Case(
        "attention_backward",
        (HEADS, HEADS, HEADS, HEADS, (1, 2, 4), HEADS, HEADS, HEADS, HEADS),
        Said(written=(6, 7, 8)),
    ),
    "merge_states": Case(
        "merge_states",
        ((3, 2, 16), (3, 2), (3, 2, 16), (3, 2)),
        Said(options=(("in_place", True),), written=(0, 1)),
    ),
    "causal_conv": Case("causal_conv", ((1, 8, 1), (1, 8, 3), (8, 4)), UPDATE),
}


def test_every_family_is_checked():
    ours = set(ops.with_a_folder())
    assert {case.op for case in CASES.values()} >= ours
    writing = {
        op for op in ours if type(ops.family(op)).written is not ops.defaults.Defaults.written
    }
    assert set(IN_PLACE) == writing


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("name", CASES)
def test_functional(name):
    case = CASES[name]
    tensors = case.tensors()
    if case.trains:
        tensors[1].requires_grad_()
    torch.library.opcheck(getattr(OURS, case.op).default, case.arguments(tensors))


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("name", CASES)
def test_out(name):
    case, packet = CASES[name], getattr(OURS, CASES[name].op)
    out = [torch.zeros_like(x) for x in packet.default(*case.arguments())]
    torch.library.opcheck(packet.out, case.arguments(), {"out": out})


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    case, packet = IN_PLACE[name], getattr(OURS, IN_PLACE[name].op)
    tensors, said, numbers = case.arguments()
    made = [torch.zeros_like(x) for x in packet.outputs(tensors, said, scalars=numbers)]
    first = case.said.written[0]
    others = [x for place, x in enumerate(tensors) if place != first]
    written = {"written": [tensors[first], *made]}
    # The second and further operands that are written are among `operands`, for the schema cannot
    # tell these from the others. Two nodes `changed` tell torch of them instead.
    exempt = OF_SCHEMA if len(case.said.written) > 1 else ""
    checks = tuple(check for check in CHECKS if check != exempt)
    torch.library.opcheck(packet.update, (others, said, numbers), written, test_utils=checks)


@pytest.mark.parametrize("name", [*CASES, *IN_PLACE])
def test_outputs(name):
    """The outputs may hold anything, so their values are not compared: that would be to compare
    memory that nobody has written."""
    case, checks = {**CASES, **IN_PLACE}[name], [check for check in CHECKS if check != BY_VALUE]
    tensors, said, numbers = case.arguments()
    packet = getattr(OURS, case.op)
    torch.library.opcheck(packet.outputs, (tensors, said), {"scalars": numbers}, test_utils=checks)


def test_changed():
    x, y = torch.randn(3), torch.randn(4)
    torch.library.opcheck(OURS.changed.default, (x, [y]))


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.trains])
def test_gradients(name):
    case = CASES[name]
    tensors, said, numbers = case.arguments()
    out = getattr(OURS, case.op).default(tensors, said, numbers)
    read = []
    if case.op == "attention":  # the sums of the softmax are read too
        options = (*case.said.options, ("lse", True))
        more = replace(case.said, options=tuple(sorted(options))).text
        read = getattr(OURS, case.op).default(tensors, more, numbers)
    arriving = [torch.randn_like(x) for x in out]
    arguments = (case.op, tensors, read, arriving, [0, 1], said, numbers)
    torch.library.opcheck(OURS.gradients.default, arguments)

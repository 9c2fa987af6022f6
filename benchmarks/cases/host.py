"""Host times of a call, by each route, beside torch's. The GPU is never waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cases import HostTimes

Calls = Mapping[str, Callable[[], Any]]

SPLIT = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x128_w4_s2_basic_split_k2_linear_g8_direct_padmnk_al16"
"""A kernel that splits K, and needs a workspace for it."""
KEYS, HEADS, DIM = 16, 8, 64
LAYERS, PASSES = 8, 25
"""Calls that a pass with gradients makes one behind the other, and passes of a batch."""
FAR = 0.05
"""What an error in bf16 may be after so many layers, of a result's norm."""


def made(rows: int, columns: int) -> Any:
    """Random numbers in bf16."""
    import torch

    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def checked(calls: Calls, a: Any, b: Any, out: Any) -> Calls:
    """The calls, each of which returned a·b, perhaps in `out`, where nothing was before."""
    import torch

    wanted = a.float() @ b.float()
    for name, call in calls.items():
        out.fill_(float("nan"))
        got = call().detach().float()
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=0.1, msg=name)
    return calls


def launches() -> Calls:
    """A 16×16×16 product in bf16, and one of K = 512 by a kernel that splits it."""
    import torch

    from plain_kernel import product
    from tilewright.dispatch import Dispatcher
    from tilewright.ops.gemm import FAMILY
    from tilewright.registry import Registry

    a, b, out = made(16, 16), made(16, 16).T, made(16, 16)
    long_a, long_b = made(16, 512), made(16, 512).T
    run = Dispatcher().run
    shared = Dispatcher(Registry("split").register_all([FAMILY.parse_name(SPLIT)])).run

    def plain_triton() -> Any:
        product[(1,)](a, b, out, 16, 16, 16, a.stride(0), b.stride(1), 16, TILE=16, num_warps=4)
        return out

    splitting = {
        "dispatched to a kernel that splits K = 512": lambda: shared(
            "gemm", long_a, long_b, out=out
        )
    }
    found: dict[str, Callable[[], Any]] = {
        "dispatched, 16×16×16": lambda: run("gemm", a, b, out=out),
        "`torch.mm(out=)`, 16×16×16": lambda: torch.mm(a, b, out=out),
        "a plain Triton launch, 16×16×16": plain_triton,
    }
    return {**checked(splitting, long_a, long_b, out), **checked(found, a, b, out)}


def routes() -> Calls:
    """A 16×16×16 product in bf16, by each route into torch."""
    import torch

    import tilewright as tw
    import tilewright.torch  # its operators

    a, b, out = made(16, 16), made(16, 16), made(16, 16)
    weight = torch.nn.Parameter(b.clone())
    run, operator = tw.default_dispatcher().run, torch.ops.tilewright.gemm
    compiled, compiled_mm = (torch.compile(one, fullgraph=True) for one in (tw.gemm, torch.mm))

    def without_gradients(call: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return call(a, b)

    def into_out() -> Any:
        operator.out([a, b], out=[out])
        return out

    return checked(
        {
            "Dispatcher.run(out=)": lambda: run("gemm", a, b, out=out),
            "Dispatcher.run": lambda: run("gemm", a, b),
            "tilewright.gemm(out=)": lambda: tw.gemm(a, b, out=out),
            "tilewright.gemm": lambda: tw.gemm(a, b),
            "torch.ops.tilewright.gemm": lambda: operator([a, b])[0],
            "torch.ops.tilewright.gemm.out": into_out,
            "tilewright.gemm, gradients recorded": lambda: tw.gemm(a, weight),
            "tilewright.gemm, compiled": lambda: without_gradients(compiled),
            "torch.mm(out=)": lambda: torch.mm(a, b, out=out),
            "torch.mm": lambda: torch.mm(a, b),
            "torch.mm, gradients recorded": lambda: torch.mm(a, weight),
            "torch.mm, compiled": lambda: without_gradients(compiled_mm),
        },
        a,
        b,
        out,
    )


def functions(device: str = "cuda") -> Calls:
    """Torch's functions of this project beside torch's own, of 16 rows and columns in bf16. GELU
    is a call of its own in torch."""
    import torch

    import tilewright.torch as ours

    theirs = torch.nn.functional
    a, b, weight, bias = torch.randn(4, 16, 16, device=device).bfloat16()
    bias = bias[0]
    leaf, leaves = torch.nn.Parameter(b), [torch.nn.Parameter(x) for x in (weight, bias)]
    found: dict[str, Callable[[], Any]] = {
        "mm, ours": lambda: ours.mm(a, b),
        "mm, torch's": lambda: torch.mm(a, b),
        "mm, gradients recorded, ours": lambda: ours.mm(a, leaf),
        "mm, gradients recorded, torch's": lambda: torch.mm(a, leaf),
        "linear with bias, ours": lambda: ours.linear(a, weight, bias),
        "linear with bias, torch's": lambda: theirs.linear(a, weight, bias),
        "linear with bias and GELU, ours": lambda: ours.linear(a, weight, bias, "gelu"),
        "linear with bias and GELU, torch's": lambda: theirs.gelu(theirs.linear(a, weight, bias)),
        "linear with bias and GELU, gradients recorded, ours": lambda: ours.linear(
            a, *leaves, "gelu"
        ),
        "linear with bias and GELU, gradients recorded, torch's": lambda: theirs.gelu(
            theirs.linear(a, *leaves)
        ),
    }
    for name, call in found.items():
        wanted = found[f"{name.rpartition(',')[0]}, torch's"]()
        for _ in range(4):  # a call like an earlier one takes another way
            torch.testing.assert_close(call(), wanted, rtol=2e-2, atol=0.1, msg=name)
    return found


def attention() -> Calls:
    """One query of one sequence over 16 keys, in bf16."""
    import torch

    import tilewright as tw
    from tilewright.flash_attn import flash_attn_func, flash_attn_with_kvcache
    from tilewright.serving import PagedAttention

    q = torch.randn(1, 1, HEADS, DIM, device="cuda").bfloat16()
    k, v = torch.randn(2, 1, KEYS, HEADS, DIM, device="cuda").bfloat16()
    out = torch.empty_like(q)
    run, heads_first = tw.default_dispatcher().run, [x.transpose(1, 2) for x in (q, k, v)]
    used = torch.full((1,), KEYS, dtype=torch.int32, device="cuda")
    paged = PagedAttention("cuda")
    zero, one = used.new_zeros(1), torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    paged.plan(None, one, zero, used, HEADS, HEADS, DIM, KEYS)
    theirs = torch.nn.functional.scaled_dot_product_attention
    compiled, compiled_theirs = (torch.compile(f, fullgraph=True) for f in (tw.attention, theirs))
    usual = "scaled_dot_product_attention"
    found: dict[str, Callable[[], Any]] = {
        "dispatched": lambda: run("attention", q, k, v, out=out),
        "tilewright.attention(out=)": lambda: tw.attention(q, k, v, out=out),
        "tilewright.attention": lambda: tw.attention(q, k, v),
        "tilewright.attention, scale=": lambda: tw.attention(q, k, v, scale=DIM**-0.5),
        "tilewright.attention, compiled": lambda: compiled(q, k, v),
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "flash_attn_with_kvcache": lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=used),
        "PagedAttention.run": lambda: paged.run(q[0], (k, v)),
        "PagedAttention.run(out=)": lambda: paged.run(q[0], (k, v), out=out[0]),
        usual: lambda: theirs(*heads_first),
        f"{usual}, compiled": lambda: compiled_theirs(*heads_first),
    }
    right = found[usual]().reshape(HEADS, DIM)
    for name, call in found.items():
        out.fill_(float("nan"))
        for _ in range(3):  # a call like an earlier one takes another way
            got = call().reshape(HEADS, DIM)
            torch.testing.assert_close(got, right, rtol=2e-2, atol=2e-2, msg=name)
    return found


@dataclass(frozen=True, slots=True)
class Layer:
    """A call whose gradients are recorded, in two forms.

    ours, theirs: (x, *parameters) → a tensor like x.
    parameters: make those of one layer.
    x: makes what the first layer is given.
    turned: a tensor of ours as torch's form has it.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    parameters: Callable[[], Sequence[Any]]
    x: Callable[[], Any]
    turned: Callable[[Any], Any] = lambda x: x


def layers(device: str) -> Mapping[str, Layer]:
    """Small layers in bf16, of which the GPU is done before the host."""
    import torch

    import tilewright as tw

    channels = 64

    def random(*shape: int, of: int = 1) -> Any:
        return (torch.randn(*shape, device=device) / of**0.5).bfloat16()

    def convolution(filter: int, groups: int, order: Any) -> Layer:
        taps = (filter, filter)
        said = ((1, 1), (filter // 2, filter // 2), (1, 1), groups)
        each = channels // groups

        def weight() -> Sequence[Any]:
            made = random(channels, each, *taps, of=each * filter**2)
            return (made.to(memory_format=order),)

        return Layer(
            lambda x, w: tw.conv2d(x, w, None, *said),
            lambda x, w: torch.nn.functional.conv2d(x, w, None, *said),
            weight,
            lambda: random(2, channels, 8, 8).to(memory_format=order),
        )

    orders = {"-last": torch.channels_last, "-first": torch.contiguous_format}
    kinds = {"3×3": (3, 1), "1×1": (1, 1), "depthwise 3×3": (3, channels)}
    found = {
        f"{kind}, channels{end}": convolution(*of, order)
        for kind, of in kinds.items()
        for end, order in orders.items()
    }
    heads = (2, KEYS, HEADS, DIM)
    return found | {
        "linear": Layer(
            lambda x, w, b: tw.gemm(x, w, bias=b, epilogue="bias"),
            torch.nn.functional.linear,
            lambda: (random(DIM, DIM, of=DIM), random(DIM)),
            lambda: random(KEYS, DIM),
            lambda x: x.T.contiguous() if x.shape == (DIM, DIM) else x,
        ),
        "attention": Layer(
            tw.attention,
            torch.nn.functional.scaled_dot_product_attention,
            lambda: (random(*heads), random(*heads)),
            lambda: random(*heads),
            lambda x: x.transpose(1, 2).contiguous(),
        ),
    }


class Stack:
    """Layers one behind the other: of one kind, ours or torch's."""

    def __init__(self, call: Callable[..., Any], x: Any, parameters: Sequence[Any]) -> None:
        self._call = call
        self._x = x.detach().requires_grad_()
        self._layers = [[p.detach().requires_grad_() for p in each] for each in parameters]
        self.leaves = [self._x, *(p for each in self._layers for p in each)]
        self._arriving = x.detach().clone()

    def forward(self) -> Any:
        x = self._x
        for each in self._layers:
            x = self._call(x, *each)
        return x

    def both(self) -> Sequence[Any]:
        """The gradients of x and of all parameters."""
        import torch

        return torch.autograd.grad(self.forward(), self.leaves, self._arriving)


def recorded(device: str = "cuda", count: int = LAYERS) -> Calls:
    """Passes through `count` layers of each kind, of ours beside torch's. Raises `ValueError` where
    a result of ours is far from torch's."""
    import torch

    from tilewright.torch import prepare

    stacks, layers_of = {}, layers(device)
    for name, layer in layers_of.items():
        x, parameters = layer.x(), [layer.parameters() for _ in range(count)]
        turned = [[*map(layer.turned, each)] for each in parameters]
        stacks[name] = (
            Stack(layer.ours, x, parameters), Stack(layer.theirs, layer.turned(x), turned)
        )  # fmt: skip

    class Ours(torch.nn.Module):
        def forward(self) -> Any:
            return [ours.both() for ours, _ in stacks.values()]

    if device == "cuda":
        prepare(Ours(), backward=False)
    calls: dict[str, Callable[[], Any]] = {}
    for name, (ours, theirs) in stacks.items():
        for _ in range(4):  # a call like an earlier one takes another way
            if bad := far(ours, theirs, layers_of[name].turned):
                raise ValueError(f"{name}: {bad}")
        for side, stack in (("ours", ours), ("torch's", theirs)):
            calls[f"{name}, forward, {side}"] = stack.forward
            calls[f"{name}, forward and backward, {side}"] = stack.both
    return calls


def far(ours: Stack, theirs: Stack, turned: Callable[[Any], Any]) -> str:
    """The errors of ours, beside torch's, where one is large; else nothing."""
    pairs = zip((ours.forward(), *ours.both()), (theirs.forward(), *theirs.both()), strict=True)
    errors = [
        ((turned(one).float() - other.float()).norm() / other.float().norm()).item()
        for one, other in pairs
    ]
    return "" if max(errors) < FAR else f"errors of {', '.join(f'{e:.2%}' for e in errors)}"


def per_layer() -> Mapping[str, Sequence[float]]:
    """Host times of `recorded` for a layer, on the GPU."""
    import steps

    found = steps.host_times(recorded(), PASSES)
    return {name: [us / LAYERS for us in times] for name, times in found.items()}


def timed(make: Callable[[], Calls]) -> Mapping[str, Sequence[float]]:
    """Host times of the calls that `make` makes, on the GPU."""
    import steps

    return steps.host_times(make())


CASES = (
    HostTimes("host-call", "a 16×16×16 product in bf16", partial(timed, launches)),
    HostTimes("host-torch", "the same product, by each route into torch", partial(timed, routes)),
    HostTimes(
        "host-functions",
        "torch's functions with torch's arguments, of 16 rows and columns in bf16",
        partial(timed, functions),
    ),
    HostTimes(
        "host-attention", "one query over 16 keys in bf16, by each route", partial(timed, attention)
    ),
    HostTimes(
        "host-gradients", f"a layer of {LAYERS} small ones in bf16 that record gradients", per_layer
    ),
)

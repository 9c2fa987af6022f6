"""`tilewright.jax` on a real GPU: cases beside the CPU's results, gradients and `vmap`, and how
calls are launched."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests want memory too

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax_cases import CASES, gradients, mapped, normal  # noqa: E402

import tilewright.jax as tj  # noqa: E402
from tilewright.jax import foreign  # noqa: E402

pytestmark = pytest.mark.gpu

ROOM = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
"""How far a result may be from that of fp32, of its norm."""
WORDS = ("NHWC", "OHWI", "NHWC")


@pytest.fixture(autouse=True)
def gpu():
    """The first GPU of JAX."""
    try:
        found = jax.local_devices(backend="gpu")
    except RuntimeError as error:
        pytest.skip(f"JAX has no GPU: {error}")
    with jax.default_device(found[0]):
        yield found[0]


def on_cpu(function, *args):
    """The results on the CPU, where fp32 is IEEE's."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        return jax.jit(function)(*jax.device_put(args, cpu))


def near(found, expected, dtype="float32"):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        ours, theirs = (np.asarray(x, np.float64) for x in (one, other))
        assert ours.shape == theirs.shape
        assert np.linalg.norm(ours - theirs) <= ROOM[dtype] * np.linalg.norm(theirs)


@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_vmap(name, gpu):
    case, count = CASES[name], len(CASES[name].args)
    args = jax.device_put(case.args, gpu)
    near(jax.jit(case.ours)(*args), on_cpu(case.theirs, *case.args))
    ours, theirs = (gradients(one, count) for one in (case.ours, case.theirs))
    near(jax.jit(ours)(*args), on_cpu(theirs, *case.args))
    many, axes = mapped(case)
    many = jax.device_put(many, gpu)
    near(jax.jit(jax.vmap(case.ours, axes))(*many), on_cpu(jax.vmap(case.theirs, axes), *many))
    near(jax.jit(jax.vmap(ours, axes))(*many), on_cpu(jax.vmap(theirs, axes), *many))


def large(dtype):
    """Functions with the sizes of models, ours and JAX's, and their arguments."""
    made = [normal(*shape, dtype=dtype, seed=i) / 8 for i, shape in enumerate(
        ((512, 1024), (1024, 768), (768,), (2, 512, 8, 64), (2, 512, 2, 64), (2, 512, 2, 64),
         (4, 28, 28, 64), (128, 3, 3, 64)))]  # fmt: skip
    a, b, bias, q, k, v, x, w = made
    pad = ((1, 1), (1, 1))
    return {
        "product": (
            lambda a, b, c: tj.gemm(a, b, bias=c, epilogue="bias+gelu"),
            lambda a, b, c: jax.nn.gelu(a @ b + c, approximate=False),
            (a, b, bias),
        ),
        "attention": (
            lambda q, k, v: tj.attention(q, k, v, causal=True),
            lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
            (q, k, v),
        ),
        "convolution": (
            lambda x, w: tj.conv(x, w, dimension_numbers=WORDS, stride=(2, 2), pad=(1, 1)),
            lambda x, w: jax.lax.conv_general_dilated(x, w, (2, 2), pad, dimension_numbers=WORDS),
            (x, w),
        ),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("what", ["product", "attention", "convolution"])
def test_sizes_of_models(what, dtype):
    ours, theirs, args = large(dtype)[what]
    wide = [x.astype(jnp.float32) for x in args]
    near(jax.jit(ours)(*args), on_cpu(theirs, *wide), dtype)
    found = jax.jit(gradients(ours, len(args)))(*args)
    near(found, on_cpu(gradients(theirs, len(args)), *wide), dtype)


def test_temporaries_begin_at_zero_in_every_call():
    """A product of a long sum shares tiles: its flags lie in memory that XLA uses in between."""
    a, b = normal(16, 1 << 15, dtype="bfloat16"), normal(1 << 15, 64, dtype="bfloat16", seed=1)

    @jax.jit
    def often(a, b):
        def one(total, i):
            noise = jnp.sin(jnp.arange(1 << 16, dtype=jnp.float32) + i)
            return total + tj.gemm(a, b).astype(jnp.float32) + 0 * noise.sum(), None

        return jax.lax.scan(one, jnp.zeros((16, 64)), jnp.arange(50))[0]

    wide = on_cpu(lambda a, b: 50 * (a @ b), a.astype(jnp.float32), b.astype(jnp.float32))
    near(often(a, b), wide, "bfloat16")


def test_a_known_call_asks_python_nothing(monkeypatch):
    call = jax.jit(tj.gemm)
    a, b = normal(96, 80, dtype="bfloat16"), normal(80, 72, dtype="bfloat16")
    first = jax.block_until_ready(call(a, b))

    def asked(*given):
        raise AssertionError("Python was asked")

    monkeypatch.setattr(foreign, "_resolve", asked)
    monkeypatch.setattr(foreign, "_again", asked)
    for _ in range(20):
        assert jnp.array_equal(call(a, b), first)


def test_calls_keep_the_order_of_the_stream():
    a = normal(256, 256) / 16

    @jax.jit
    def chain(x):
        for _ in range(20):
            x = jnp.tanh(tj.gemm(jnp.sin(x), x))
        return x

    def theirs(x):
        for _ in range(20):
            x = jnp.tanh(jnp.sin(x) @ x)
        return x

    for seed in range(5):
        x = normal(256, 256, seed=seed) / 16 + 0 * a
        near(chain(x), on_cpu(theirs, x))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("what", ["product", "attention", "convolution"])
def test_xla_records_calls_into_its_graphs(what, known):
    """What a graph holds is right in other buffers and for other values too, also if Python is
    asked for the call while XLA captures it."""
    ours, theirs, args = large("bfloat16")[what]
    step = jax.jit(lambda *args: [jnp.sin(x) for x in gradients(ours, len(args))(*args)])
    made = step.lower(*args).compile()
    if not known:
        foreign._handlers().forget()
    given = [[x * scale for x in args] for scale in (1, 0.5, 0.25)]
    wanted = [
        on_cpu(lambda *args: [jnp.sin(x) for x in gradients(theirs, len(args))(*args)],
               *(x.astype(jnp.float32) for x in one))
        for one in given
    ]  # fmt: skip
    for one, exact in [*zip(given, wanted, strict=True)] * 3:
        near(made(*one), exact, "bfloat16")


def test_a_recorded_call_arrives_for_new_buffers_alone(monkeypatch):
    """Six calls are a graph of XLA's: the handler queues into it, and not in each step."""
    a, b = (normal(256, 256, dtype="bfloat16", seed=seed) / 16 for seed in range(2))
    launches, resolved = [], foreign._resolved

    def kept(launch):
        launches.append(launch)
        return resolved(launch)

    @jax.jit
    def chain(a, b):
        for _ in range(6):
            a = tj.gemm(a, b)
        return a

    monkeypatch.setattr(foreign, "_resolved", kept)
    for _ in range(20):
        jax.block_until_ready(chain(a, b))
    assert 6 <= sum(one.launches() for one in launches) < 60


def test_another_gpu_has_the_call_too():
    gpus = jax.local_devices(backend="gpu")
    if len(gpus) < 2:
        pytest.skip("there is one GPU")
    a, b = normal(96, 80), normal(80, 72)
    for one in gpus:
        near(jax.jit(tj.gemm)(*jax.device_put((a, b), one)), on_cpu(jnp.matmul, a, b))
    mesh = jax.sharding.Mesh(np.array(gpus[:2]), ("x",))
    spec, whole = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
    local = jax.shard_map(tj.gemm, mesh=mesh, in_specs=(spec, whole), out_specs=spec)
    near(jax.jit(local)(a, b), on_cpu(jnp.matmul, a, b))
    ours = jax.grad(lambda a, b: jnp.sum(local(a, b) ** 2), (0, 1))
    near(jax.jit(ours)(a, b), on_cpu(jax.grad(lambda a, b: jnp.sum((a @ b) ** 2), (0, 1)), a, b))


def two_gpus():
    gpus = jax.local_devices(backend="gpu")
    if len(gpus) < 2:
        pytest.skip("there is one GPU")
    return gpus[:2]


@pytest.mark.parametrize("what", ["product", "attention", "convolution"])
def test_results_and_gradients_on_two_gpus_by_turns(what):
    gpus = two_gpus()
    ours, theirs, args = large("bfloat16")[what]
    wide = [x.astype(jnp.float32) for x in args]
    wanted = on_cpu(theirs, *wide), on_cpu(gradients(theirs, len(args)), *wide)
    step = jax.jit(lambda *args: (ours(*args), gradients(ours, len(args))(*args)))
    for one in gpus * 3:
        near(step(*jax.device_put(args, one)), wanted, "bfloat16")


def test_a_layer_is_trained_on_halves_of_a_batch():
    """Each GPU has half of the images; the gradient of the filters is summed over both."""
    _, _, (x, w) = large("float32")["convolution"]
    mesh = jax.sharding.Mesh(np.array(two_gpus()), ("x",))
    spec, whole = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()

    def local(x, w):
        y = tj.conv(x, w, dimension_numbers=WORDS, pad=(1, 1))
        return jax.lax.psum(jnp.sum(y * y), "x")

    def theirs(x, w):
        pad = ((1, 1), (1, 1))
        y = jax.lax.conv_general_dilated(x, w, (1, 1), pad, dimension_numbers=WORDS)
        return jnp.sum(y * y)

    loss = jax.shard_map(local, mesh=mesh, in_specs=(spec, whole), out_specs=whole)
    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    wanted = on_cpu(jax.value_and_grad(theirs, (0, 1)), x, w)
    for _ in range(3):
        near(step(x, w), wanted, "float16")


def test_threads_on_two_gpus():
    gpus = two_gpus()
    args = [normal(96, 80, seed=seed) for seed in range(8)]
    b = normal(80, 72)
    wanted = [on_cpu(jnp.matmul, a, b) for a in args]
    call = jax.jit(tj.gemm)

    def work(number):
        given = jax.device_put((args[number], b), gpus[number % 2])
        for _ in range(10):
            near(call(*given), wanted[number])

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(work, range(8))]


def test_jax_arrays_go_through_dlpack_outside_of_jit():
    import tilewright as tw

    a, b = normal(64, 48, dtype="bfloat16"), normal(48, 32, dtype="bfloat16")
    near(jnp.from_dlpack(tw.gemm(a, b)), on_cpu(jnp.matmul, a, b), "bfloat16")

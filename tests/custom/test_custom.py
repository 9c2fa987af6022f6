"""A kernel of a user's own as an operation: declared, named, planned, built, called, checked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import LIMIT_SECONDS
from tilewright import arrays, ops, verify
from tilewright.compile import build
from tilewright.custom import In, Out, operation
from tilewright.custom.family import CustomFamily
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, UnknownName, UnsupportedProblem
from tilewright.registry import Registry
from tilewright.tables.row import meant, said

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """What a test registers is gone after it."""
    with monkeypatch.context() as patch:
        patch.setattr(ops, "_registered", dict(ops._registered))
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        patch.setenv("PYTHONPATH", path)
        patch.setenv(ops.MODULES_VARIABLE, "custom_kernels")
        sys.modules.pop("custom_kernels", None)
        ops._import_named.cache_clear()
        yield
        ops._import_named.cache_clear()


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def axpy() -> CustomFamily:
    family = ops.family("custom_axpy")
    assert isinstance(family, CustomFamily)
    return family


@given(
    dtype=st.sampled_from(["fp16", "bf16", "fp32"]),
    bias=st.booleans(),
    negate=st.booleans(),
    alignment=st.sampled_from([16, 1]),
    rows=st.sampled_from([4, 8]),
)
def test_a_name_says_its_config(dtype, bias, negate, alignment, rows):
    family = CustomFamily(axpy().declared)
    config = family.config_type(dtype, bias, negate, alignment, ROWS=rows)
    assert family.parse_name(config.name) == config
    assert config.name.startswith("custom_axpy_")


@pytest.mark.parametrize("name", ["custom_axpy", "custom_axpy_fp16", "custom_axpy_zz_x"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(UnknownName):
        axpy().parse_name(name)


def test_a_problem_is_said_and_read(dispatcher):
    problem = axpy().problem_type(rows=3, dtype="fp16", has_bias=True, negate=True)
    assert meant(said(problem), "here") == problem
    assert problem.min_bytes == 2 * 3 * 64 * 3 + 4 * 64


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("negate", [False, True])
def test_an_option_an_optional_operand_and_an_inout(dispatcher, bias, negate):
    problem = axpy().problem_type(rows=9, dtype="fp16", has_bias=bias, negate=negate)
    result = verify.verify(dispatcher, problem)
    assert result.ok, result


@pytest.mark.turns(6)
def test_a_call_changes_an_inout_in_place(dispatcher):
    x, y = np.ones((5, 64), np.float32), np.full((5, 64), 2.0, np.float32)
    assert dispatcher.run("custom_axpy", x, y, alpha=3.0) is None
    assert (y == 5.0).all() and (x == 1.0).all()
    bias = np.arange(64, dtype=np.float32)
    dispatcher.run("custom_axpy", x, y, alpha=0.0, bias=bias, negate=True)
    assert np.array_equal(y[0], bias - 5.0)


def test_two_kernels_with_a_temporary(dispatcher):
    problem = ops.family("custom_total").problem_type(length=700, dtype="fp32")
    plan = dispatcher.select(problem)
    assert [step.part for step in plan.launch.steps] == ["partial", "finish"]
    assert verify.verify(dispatcher, problem).ok
    x = np.random.default_rng(0).standard_normal(333).astype(np.float32)
    np.testing.assert_allclose(dispatcher.run("custom_total", x), [x.sum()], rtol=1e-4, atol=1e-3)


@pytest.mark.turns(64)
def test_it_is_built_for_every_vendor(dispatcher, store):
    config = dispatcher.select(ops.family("custom_total").problem_type(length=700)).config
    report = build([(config, name) for name in ("sm_90", "gfx942")], store=store, workers=1)
    report.raise_if_failed()
    assert sorted((r.arch.name, r.part) for r in report.results) == [
        ("gfx942", "finish"), ("gfx942", "partial"), ("sm_90", "finish"), ("sm_90", "partial"),
    ]  # fmt: skip


def test_a_registry_keeps_it(tmp_path):
    problem = axpy().problem_type(rows=3)
    configs = axpy().default_space(problem, ops_arch()).expand("sm_90").configs
    registry = Registry("own").register_all(configs)
    registry.save(tmp_path / "own.json")
    assert Registry.load(tmp_path / "own.json") == registry and len(registry) == 4


def ops_arch():
    from tilewright.arch import arch

    return arch("sm_90")


def test_aligned_kernels_come_first_and_serve_aligned_arrays_only(dispatcher):
    problem = axpy().problem_type(rows=3)
    aligned = dispatcher.select(problem).config
    assert aligned.alignment == 16
    apart = replace(problem, alignment=2)
    assert dispatcher.select(apart).config.alignment == 1
    verdict = axpy().supports(aligned, apart, ops_arch())
    assert verdict.rule == "alignment" and "of 16 bytes" in verdict.reason


def test_a_sum_has_one_term_unless_more_are_stated():
    """With more terms, and with arithmetic that amplifies, a result may be farther off."""

    def off(**changes):
        family = CustomFamily(replace(axpy().declared, **changes))
        problem = family.problem_type(rows=3, dtype="fp32")
        return family.tolerances(problem, None)["y"].scaled

    declared()  # states neither
    assert off(terms=1) == off(terms=ops.family("custom_other").declared.terms)
    assert off(terms=1) < off(terms=2) and off(amplifies=1.0) < off(amplifies=4.0)


def test_what_is_refused_says_why(dispatcher):
    x = np.ones((4, 64), np.float32)
    for call, says in (
        (lambda: dispatcher.run("custom_axpy", x, x.copy()), "needs alpha="),
        (lambda: dispatcher.run("custom_axpy", x, alpha=1.0), "takes 2 operands"),
        (lambda: dispatcher.run("custom_axpy", x, np.ones((5, 64), np.float32), alpha=1.0), "rows"),
        (lambda: dispatcher.run("custom_axpy", x, x.astype(np.float16), alpha=1.0), "fp16"),
        (lambda: dispatcher.run("custom_axpy", x.T.copy().T, x.copy(), alpha=1.0), "contiguous"),
        (lambda: dispatcher.run("custom_axpy", x, x, alpha=1.0), "shares memory"),
        (lambda: dispatcher.run("custom_axpy", x, x.copy(), alpha=1.0, sign=True), "no option"),
        (lambda: dispatcher.run("custom_axpy", x, x.copy(), alpha=1.0, negate=3), "negate"),
    ):
        with pytest.raises(BadArgument, match=says):
            call()
    name = axpy().config_type("fp32", False, True, 16).name
    with pytest.raises(UnsupportedProblem, match="negate"):
        dispatcher.run_named(name, x, x.copy(), alpha=1.0)


def declared(**changes):
    """A decorated kernel whose declaration has `changes`."""
    import custom_kernels

    usual = {
        "operands": {"x": In("length"), "sums": Out(1, dtype="fp32")},
        "axes": {"BLOCK": (64,)},
        "grid": lambda p, c: (1,),
        "reference": lambda x: x,
    }
    return operation("custom_other", **{**usual, **changes})(custom_kernels.partial)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"axes": {}}, "parameter 'BLOCK' is no operand"),
        ({"operands": {"x": In("length")}}, "'sums' is no operand"),
        ({"operands": {"x": In("length"), "sums": In(1)}}, "writes nothing"),
        ({"scalars": {"x": ("fp32", None)}}, "'x' names two things"),
        ({"axes": {"BLOCK": (64,), "length": (1,)}}, "'length' names two things"),
        ({"grid": None}, "a grid, or parts"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(changes, says):
    with pytest.raises(BadArgument, match=says):
        declared(**changes)


def test_a_name_that_is_taken_is_refused():
    import custom_kernels

    with pytest.raises(BadArgument, match="'gemm' cannot name"):
        operation(
            "gemm",
            operands={"x": In("length"), "sums": Out(1, dtype="fp32")},
            axes={"BLOCK": (64,)},
            grid=lambda p, c: (1,),
            reference=lambda x: x,
        )(custom_kernels.partial)


def test_inputs_have_values_for_every_scalar():
    made = axpy().make_inputs(axpy().problem_type(rows=2), arrays.Random(0))
    assert set(made) == {"x", "y", "alpha"} and isinstance(made["alpha"], float)


def run(code: str, folder: Path, **env: str) -> str:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    own = {
        "TILEWRIGHT_HOME": str(folder / "home"),
        "TILEWRIGHT_STORE": str(folder / "store"),
        "PYTHONPATH": "",
        **env,
    }
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **own}, cwd=folder, text=True,
        capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


DOUBLE = """
    import numpy as np
    import triton
    import triton.language as tl
    from tilewright.custom import In, Out, operation

    @operation(
        "custom_double",
        operands={"x": In("length"), "y": Out("length")},
        axes={"BLOCK": (64,)},
        grid=lambda p, c: (-(-p.length // c.BLOCK),),
        reference=lambda x: 2 * x,
    )
    @triton.jit
    def double(x, y, length, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, at < length), at < length)
"""


@pytest.mark.turns(48)
def test_a_script_that_is_run_may_declare_one(tmp_path):
    """Other processes import the script by its file's name."""
    use = """
    if __name__ == "__main__":
        import tilewright as tw

        print(tw.custom_double(np.full(100, 1.5, np.float32)).sum())
        problem = tw.ops.family("custom_double").problem_type(length=100, dtype="fp32")
        config = tw.Dispatcher(device="h200_sxm").select(problem).config
        print(tw.build([(config, "sm_90")], store=tw.Store()).results[0].status)
    """
    env = {ops.MODULES_VARIABLE: ""}
    assert run(DOUBLE + use, tmp_path, **env).split() == ["300.0", "built"]


@pytest.mark.turns(8)
def test_an_installed_package_names_one_as_an_entry_point(tmp_path):
    package = tmp_path / "site"
    (package / "my_ops").mkdir(parents=True)
    (package / "my_ops" / "__init__.py").write_text("")
    (package / "my_ops" / "double.py").write_text(textwrap.dedent(DOUBLE))
    info = package / "my_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_ops\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ops.ENTRY_POINTS}]\ncustom_double = my_ops.double\n")
    code = """
    import numpy as np
    import tilewright as tw

    if __name__ == "__main__":
        print(tw.custom_double(np.full(10, 2.0, np.float32)).sum(), *tw.ops.families())
    """
    env = {"PYTHONPATH": str(package), ops.MODULES_VARIABLE: ""}
    known = ["attention", "attention_backward", "causal_conv", "conv", "custom_double", "gemm"]
    known += ["grouped_gemm", "merge_states", *ops.declared()]
    assert run(code, tmp_path, **env).split() == ["40.0", *sorted(known)]

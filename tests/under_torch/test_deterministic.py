"""``torch.use_deterministic_algorithms``: calls choose kernels that repeat, in gradients too."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.default import _WarnOnly  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BuildFailed, NoKernelFound  # noqa: E402
from tilewright.ops.attention_backward import AttentionBackwardProblem  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402
from tilewright.plan import Planner  # noqa: E402

ATOMIC = "gemm_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s3_basic_split_k4_atomic_g8_direct_padmnk_al16"

PROBLEMS = (
    AttentionBackwardProblem(4, 16, 4096, 4096, 128, right=0),
    AttentionBackwardProblem(4, 16, 4096, 4096, 256),
    tw.GemmProblem(128, 128, 65536),
    ConvProblem(8, 64, 64, (28, 28), (3, 3)),
)


@pytest.fixture
def switch():
    """Sets torch's switch, which is off again at the end."""
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_chosen_kernels_repeat(switch, problem):
    """And where there are such kernels, nothing warns."""
    switch(True, warn_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = tw.default_dispatcher().select(problem).config
    assert ops.family(problem.family).repeats(chosen)


def test_without_the_switch_any_kernel_is_chosen(switch):
    """As here, where sums in turns are slower; for the first problem they are faster."""
    own = tw.default_dispatcher()
    chosen = own.select(PROBLEMS[1]).config
    assert not ops.family("attention_backward").repeats(chosen)
    switch(True)
    assert tw.default_dispatcher() is not own
    switch(False)
    assert tw.default_dispatcher() is own


def chosen(monkeypatch, run):
    """The kernels of the calls that `run` makes, by operation."""
    found, plan = {}, Planner.plan

    def noted(self, problem, target, constraints=None):
        made = plan(self, problem, target, constraints)
        found[problem.family] = made.config
        return made

    monkeypatch.setattr(Planner, "plan", noted)
    run()
    return found


@pytest.mark.parametrize("on", [False, True])
def test_gradients_are_computed_by_such_kernels(switch, monkeypatch, on):
    """Also where the switch was set after the forward pass, and in torch's thread for gradients."""

    def run():
        q = torch.randn(1, 24, 2, 64, dtype=torch.bfloat16, requires_grad=True)
        o = tw.attention(q, q.detach(), q.detach(), mask="causal")
        switch(on)
        o.float().sum().backward()

    # Calls plan for this GPU, wherever they run.
    monkeypatch.setattr(Planner, "device_for_planning", lambda _: tw.arch.device("h200"))
    found = chosen(monkeypatch, run)
    asked = tw.default_dispatcher().constraints.deterministic
    assert asked == on
    family = ops.family("attention_backward")
    assert family.repeats(found["attention_backward"]) or not on


def test_where_no_kernel_repeats(switch):
    """An error, or under ``warn_only`` a warning and another kernel."""
    registry = tw.Registry("one").register_all([ATOMIC])
    constraints = tw.Constraints(deterministic=True)
    problem = tw.GemmProblem(64, 64, 4096)
    with pytest.raises(NoKernelFound, match="deterministic"):
        Dispatcher(registry, "h200", constraints=constraints).select(problem)
    warning = _WarnOnly(registry, "h200", constraints=constraints)
    with pytest.warns(UserWarning, match="may give other bits in each run"):
        assert warning.select(problem).config.name == ATOMIC
    with pytest.raises(NoKernelFound, match="deterministic"):
        warning.select(problem, constraints)  # asked for by this call alone


def test_where_a_kernel_that_does_not_repeat_cannot_be_built_another_is_taken(switch):
    kernels = [ATOMIC, ATOMIC.replace("_g8_", "_g4_")]
    registry, problem = tw.Registry("two").register_all(kernels), tw.GemmProblem(64, 64, 4096)
    planner = _WarnOnly(
        registry, "h200", constraints=tw.Constraints(deterministic=True), selector="first_fit"
    ).planner
    target = planner.device_for_planning()
    with pytest.warns(UserWarning, match="may give other bits in each run"):
        first = planner.plan(problem, target)
        planner.avoid(first, BuildFailed("the compiler crashed"))
        second = planner.plan(problem, target)
    assert [first.config.name, second.config.name] == kernels


def test_default_dispatchers_are_those_two(switch):
    switch(True)
    assert type(tw.default_dispatcher()) is Dispatcher
    switch(True, warn_only=True)
    assert type(tw.default_dispatcher()) is _WarnOnly

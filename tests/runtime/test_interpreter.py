"""The CPU interpreter: faults are contained, and its process ends with ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreting import (
    ENV,
    KERNELS,
    ONE,
    launch,
)

from patience import LIMIT_SECONDS, processor_seconds, runs, until
from tilewright.errors import BadArgument, LaunchFailed
from tilewright.ops.nouns import (
    MAIN,
    Argument,
    Descriptor,
    KernelSource,
    Launch,
    Pointer,
    Step,
)
from tilewright.runtime.interpreter import Interpreter


def assert_works(cpu: Interpreter) -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    launch(cpu, "copy", [x, y, 8], ["y"], BLOCK=8)
    np.testing.assert_array_equal(x, y)


def test_a_kernel_that_raises(cpu: Interpreter) -> None:
    line = KERNELS[: KERNELS.index("no such tile")].count("\n") + 1
    words = (
        rf"'interp_kernels\.fail'.*program \(2, 0, 0\), interp_kernels\.py:{line}: "
        "ValueError: no such tile"
    )
    with pytest.raises(LaunchFailed, match=words):
        launch(cpu, "fail", [np.zeros(1, np.float32)], grid=(4, 1, 1))
    assert_works(cpu)


@pytest.mark.parametrize(
    ("how", "words"),
    [("SIGABRT", "killed by SIGABRT"), ("SIGSEGV", "killed by SIGSEGV"), ("exit", "code 7")],
)
def test_a_kernel_that_kills_its_process(cpu: Interpreter, how: str, words: str) -> None:
    with pytest.raises(LaunchFailed, match=words):
        launch(cpu, "die", [np.zeros(1, np.float32)], HOW=how)
    assert_works(cpu)


def test_a_kernel_that_hangs(cpu: Interpreter) -> None:
    with pytest.raises(LaunchFailed, match=r"no answer within 0\.5 s"):
        launch(cpu, "hang", [np.zeros(1, np.float32)], timeout=0.5)
    assert_works(cpu)


def test_printing_does_not_disturb_the_answer(cpu: Interpreter) -> None:
    x = np.zeros(4, np.float32)
    launch(cpu, "chatty", [x, 4], ["x"], BLOCK=4)
    assert (x == 3).all()


def test_an_interrupt_does_not_shift_the_answers(
    cpu: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright import child

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    assert_works(cpu)
    with monkeypatch.context() as patch:
        patch.setattr(child, "read_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            assert_works(cpu)
    assert_works(cpu)


def test_modules_and_functions_that_may_not_run(
    cpu: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(module: str, function: str) -> None:
        source = KernelSource(module, function, (), ())
        cpu.run({MAIN: source}, Launch((Step(ONE, ()),)), {}, [])

    with pytest.raises(LaunchFailed, match="'os' may not be run"):
        start("os", "abort")
    with pytest.raises(LaunchFailed, match="may not be run"):
        start("interp_kernels_more", "copy")
    with pytest.raises(LaunchFailed, match=r"'interp_kernels\.not_a_kernel' is not a Triton"):
        start("interp_kernels", "not_a_kernel")
    with pytest.raises(LaunchFailed, match="ModuleNotFoundError"):
        start("tilewright.no_such_module", "f")


def test_arguments_that_do_not_fit(cpu: Interpreter) -> None:
    source = KernelSource("interp_kernels", "fail", (("x", "*fp32"),), ())
    x = np.zeros(1, np.float32)

    def start(*arguments: Argument, part: str = MAIN, written: Sequence[str] = ()) -> None:
        cpu.run({MAIN: source}, Launch((Step(ONE, arguments, part),)), {"x": x}, written)

    with pytest.raises(BadArgument, match="has 1 arguments, the launch has 0"):
        start()
    with pytest.raises(BadArgument, match=r"takes 'y', which is none of its operands .*: x$"):
        start(Pointer("y"))
    with pytest.raises(BadArgument, match=r"takes 'y', which is none of its operands .*: x$"):
        start(Descriptor("y", "fp32", (1, 16), (16, 1), (1, 16)))
    with pytest.raises(BadArgument, match="'y' is to be written but is none of the operands"):
        start(Pointer("x"), written=["y"])
    with pytest.raises(BadArgument, match="a step 'second' without a kernel"):
        start(Pointer("x"), part="second")


def test_four_threads_share_one_interpreter(cpu: Interpreter) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(5):
                x = np.random.default_rng([seed, i]).standard_normal(500 + seed)
                x = x.astype(np.float32)
                y = np.zeros_like(x)
                launch(cpu, "copy", [x, y, x.size], ["y"], BLOCK=1024)
                np.testing.assert_array_equal(x, y)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@contextlib.contextmanager
def run_python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, ended with all that it forked when the test is over."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


START = """
import os, sys, time
import numpy as np
from tilewright.ops.nouns import *
from tilewright.runtime.interpreter import interpreter
def run(function, timeout=None):
    x = np.zeros(4, np.float32)
    signature = (("x", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr"))
    if function == "hang":
        signature = (("x", "*fp32"),)
    constants = (("BLOCK", 4),) if len(signature) == 3 else ()
    arguments = (Pointer("x"), Scalar("i32", 4))[: len(signature)]
    source = KernelSource("interp_kernels", function, signature, constants)
    plan = Launch((Step((1, 1, 1), arguments),))
    interpreter().run({MAIN: source}, plan, {"x": x}, ["x"], timeout=timeout)
    assert function == "hang" or (x == 3).all()
run("chatty")
print(interpreter()._child.pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_the_child_dies_with_its_parent() -> None:
    with run_python(START + "run('hang')") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        before = processor_seconds(child)
        until(lambda: processor_seconds(child) > before + 0.1)  # in the endless loop
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until(lambda: not runs(child))


@pytest.mark.turns(8)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_shared_interpreter_closes_at_exit_and_leaves_a_fork_alone() -> None:
    # The forked process, in which the lock stays held, gets a child of its own and, when it
    # exits, spares its parent's.
    code = (
        START
        + """
inherited = interpreter()
inherited._lock.acquire()  # as if another thread were running something
if os.fork() == 0:
    run("chatty")
    inherited.close()
    sys.exit(0)
inherited._lock.release()
assert os.wait()[1] == 0
os.kill(inherited._child.pid, 0)
run("chatty")
print("well", flush=True)
"""
    )
    with run_python(code) as parent:
        text, _ = parent.communicate(timeout=LIMIT_SECONDS)
    child, _, rest = text.partition("\n")
    assert rest == "well\n" and parent.returncode == 0
    until(lambda: not runs(int(child)))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_closing_ends_the_child_and_the_next_run_starts_one(
    cpu: Interpreter,
) -> None:
    assert_works(cpu)
    assert cpu._child is not None
    first = cpu._child.pid
    cpu.close()
    assert not runs(first)
    cpu.close()
    assert_works(cpu)


def test_the_child_imports_no_torch() -> None:
    code = """
        import sys
        import tilewright.runtime.interpreter_worker
        assert not {"torch", "triton"} & set(sys.modules)
        from tilewright.runtime import interpreter_patch
        interpreter_patch.install()
        assert "torch" not in sys.modules
    """
    with run_python(code) as process:
        assert process.wait() == 0


def test_a_triton_out_of_range_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "triton-9.9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))  # a child imports from where its parent does
    with Interpreter() as cpu, pytest.raises(LaunchFailed, match=r"9\.9\.9 is .* 3\.6 to 3\.9"):
        assert_works(cpu)

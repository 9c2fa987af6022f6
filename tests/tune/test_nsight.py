"""Hardware counters: what ncu prints is read, and what stands in their way is said. A stand-in for
ncu takes the program's place."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
from fake_crew import ENVIRONMENT
from fake_ncu import printed, prints, put

from patience import LIMIT_SECONDS, runs, until
from tilewright.arch import device
from tilewright.compile import Store
from tilewright.errors import BadFile
from tilewright.measure import nsight
from tilewright.measure.counters import (
    COUNTERS,
    Launch,
    NoCounters,
    combine,
    parse,
    refusal,
)
from tilewright.measure.devices import Place, interpreter_place
from tilewright.ops.gemm import GemmProblem

H200 = Place("GPU-0", ENVIRONMENT, device("h200_sxm"))
NAME = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x32_w4_s2_basic_tile_g8_direct_padmnk_al1"
PROBLEM = GemmProblem(64, 64, 64)
METRICS = {counter.name: counter.metric for counter in COUNTERS}


def launch(**values: float) -> Launch:
    return Launch("f", "(1, 1, 1)", "(32, 1, 1)", {METRICS[n]: v for n, v in values.items()})


# --- what ncu prints --------------------------------------------------------------------------


def test_what_a_product_on_an_h200_printed_is_read():
    (one,) = parse(printed("gemm"))
    assert (one.function, one.grid, one.block) == ("gemm_basic", "(1024, 1, 1)", "(256, 1, 1)")
    found = combine([one])
    assert found.values == {
        "time": pytest.approx(236.416),
        "dram_read": 187178240,
        "dram_written": 28210176,
        "l2": 2033197856,
        "l2_hits": 83.35,
        "matrix_units": 66.99,
        "compute_units": 66.99,
        "issue_slots": 29.40,
        "occupancy": 23.77,
        "bank_conflicts": 110490,
        "local_read": 0,
        "local_written": 0,
    }
    assert not found.missing
    assert list(found.stalls)[:3] == ["dispatch_stall", "barrier", "wait"]
    assert found.stalls["barrier"] == pytest.approx(2.11 / 12.97, rel=0.01), "of the whole"
    assert "selected" not in found.stalls, "a warp that issues does not wait"


def test_numbers_may_have_commas_and_words_may_follow_the_table():
    log = printed("gemm").replace('"187178240"', '"187,178,240"').replace('"83.35"', '"n/a"')
    (one,) = parse(log + "the last word\n")
    assert one.metrics[METRICS["dram_read"]] == 187178240
    assert combine([one]).missing == ("l2_hits",)


def test_times_and_bytes_of_launches_add_up_and_shares_are_averaged_by_time():
    found = combine(
        [
            launch(time=3000.0, dram_read=100.0, occupancy=20.0),
            launch(time=1000.0, dram_read=50.0, occupancy=60.0),
        ]
    )
    assert found.values == {"time": 4.0, "dram_read": 150.0, "occupancy": 30.0}
    assert len(found.launches) == 2


def test_what_one_launch_lacks_is_missing():
    found = combine([launch(time=1.0, l2=1.0), launch(time=1.0)])
    assert "l2" not in found.values and "l2" in found.missing and "time" not in found.missing


def test_a_log_without_a_table_has_no_launch():
    assert parse("") == [] == parse(printed("no_permission"))


def test_refusals_say_why_and_what_to_do():
    assert "NVreg_RestrictProfilingToAdminUsers=0" in refusal(printed("no_permission"), "")
    assert refusal("==ERROR== It broke.\n", "a\nb\n") == "ncu: It broke (b)"
    assert refusal("", "") == "ncu: it profiled no launch"


# --- how it is run ----------------------------------------------------------------------------


@pytest.fixture
def ncu(monkeypatch, tmp_path):
    """Puts a stand-in on the PATH, given its body."""
    return partial(put, monkeypatch, tmp_path)


def read(tmp_path, seconds=30, place=H200):
    return nsight.read(NAME, PROBLEM, place, Store(tmp_path / "store"), seconds)


def test_counters_are_read(ncu, tmp_path):
    said = tmp_path / "said"
    ncu(f"{prints('gemm')}; open({str(said)!r}, 'w').write(repr((sys.argv, dict(os.environ))))")
    found = read(tmp_path)
    assert not found.missing
    argv, env = eval(said.read_text())
    assert argv[argv.index("--clock-control") + 1] == "none", "the device's clocks stay alone"
    assert argv[argv.index("--profile-from-start") + 1] == "off"
    assert set(argv[argv.index("--metrics") + 1].split(",")) == set(METRICS.values())
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    request = json.loads(argv[-1])
    assert request["kernel"] == NAME and json.loads(request["problem"])["m"] == 64


def test_no_permission_is_said_with_what_to_do(ncu, tmp_path):
    ncu(f"{prints('no_permission')}; sys.exit(1)")
    with pytest.raises(NoCounters, match=r"ERR_NVGPUCTRPERM.*run as root"):
        read(tmp_path)


def test_an_ncu_that_refuses_a_metric_is_asked_for_the_others(ncu, tmp_path):
    refused = f"==ERROR== Failed to access the following 1 metrics: {METRICS['l2_hits']}"
    ncu(
        f"if {METRICS['l2_hits']!r} in ' '.join(sys.argv):\n"
        f"    open(log, 'w').write({refused!r})\n    sys.exit(1)\n{prints('gemm')}"
    )
    assert read(tmp_path).values["dram_read"] == 187178240


def test_one_that_hangs_is_ended_with_what_it_started(ncu, tmp_path):
    pid = tmp_path / "pid"
    ncu(
        "p = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid)!r}, 'w').write(str(p.pid))\ntime.sleep(600)"
    )
    seconds = 1
    while not (pid.exists() and pid.read_text()):  # a busy machine may take longer to start it
        with pytest.raises(NoCounters, match=f"did not end within {seconds} s"):
            read(tmp_path, seconds=seconds)
        seconds *= 2
    until(lambda: not runs(int(pid.read_text())))


@pytest.mark.turns(24)
def test_what_it_watches_is_a_process_that_says_why_it_failed(ncu, tmp_path):
    """The real process, on a machine without a GPU, or without the kernel's binary."""
    pytest.importorskip("torch")
    ncu("open(log, 'w').write('==WARNING== No kernels were profiled.'); "
        "sys.exit(subprocess.run(command).returncode)")  # fmt: skip
    with pytest.raises(NoCounters) as caught:
        read(tmp_path, seconds=LIMIT_SECONDS)
    told = str(caught.value)
    assert told.startswith("ncu: No kernels were profiled (")
    assert any(word in told for word in ("NVIDIA", "CUDA", "not in", "store")), told


def test_without_ncu_or_an_nvidia_gpu_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(NoCounters, match="not installed"):
        read(tmp_path)
    with pytest.raises(NoCounters, match="not on the interpreter"):
        read(tmp_path, place=interpreter_place())
    with pytest.raises(NoCounters, match="on NVIDIA GPUs"):
        read(tmp_path, place=replace(H200, device=device("mi300x")))


def test_ncu_is_found_in_the_toolkit_too(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    file = tmp_path / "bin" / "ncu"
    file.write_text("")
    file.chmod(0o755)
    assert nsight.find_ncu() == str(file)


def test_a_table_without_a_column_is_an_error():
    log = '"ID","Kernel Name","Grid Size"\n"","",""\n"0","k","1"\n'
    with pytest.raises(BadFile, match="no column 'Block Size'"):
        parse(log)

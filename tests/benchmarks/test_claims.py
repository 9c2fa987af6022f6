"""A published number carries its proof: the commit, the kernels' sources and the machine."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import claims
import environment
from claims import Claim, Compared, Ratios
from tilewright.arch import arch
from tilewright.errors import BadArgument, BadFile, LibraryRefused
from tilewright.ops.gemm import FAMILY as GEMM
from tilewright.runtime import libraries

HEAD = "0123456789abcdef0123456789abcdef01234567"
NAMES = (
    "gemm_rcr_bf16_bf16_bf16_fp32_64x64x128_w4_s6_gluon_ws_persistent_g8_direct_padmnk_al16",
    "gemm_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s3_basic_tile_g8_direct_padmnk_al16",
)


def kernels() -> environment.Sources:
    return environment.kernel_sources(map(GEMM.parse_name, NAMES), arch("sm_90"))


def claim(**given: object) -> Claim:
    usual = {
        "claim": "gemm-toy",
        "against": "torch.mm",
        "problems": 2,
        "calls": Compared(Ratios.of([1.0, 4.0])),
        "graphs": None,
        "environment": {"commit": HEAD, "changed": False},
        "kernels": kernels(),
    }
    return Claim(**{**usual, **given})


def test_ratios_have_a_geometric_mean_a_tenth_and_a_least():
    assert Ratios.of([4.0, 1.0]) == Ratios(2.0, 1.0, 1.0)
    assert Ratios.of([float(n) for n in range(20, 0, -1)]).p10 == 3


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [float("nan")], [float("inf")]])
def test_ratios_of_nothing_or_of_no_time_are_refused(ratios):
    with pytest.raises(BadArgument):
        Ratios.of(ratios)


def test_a_claim_is_read_as_it_was_saved(tmp_path):
    path = claims.save(claim(), tmp_path / "new")
    assert claims.load_all(path.parent) == {"gemm-toy": claim()}


def test_a_claim_under_another_name_or_with_unknown_fields_is_refused(tmp_path):
    path = claims.save(claim(), tmp_path)
    with pytest.raises(BadFile):
        claims.load(path.rename(tmp_path / "other.json"))
    (tmp_path / "gemm-toy.json").write_text(json.dumps({**dataclasses.asdict(claim()), "means": 1}))
    with pytest.raises(BadFile):
        claims.load(tmp_path / "gemm-toy.json")


def test_kernels_are_told_by_family_and_pipeline_with_the_modules_of_all_their_parts():
    assert {kernel: [*modules] for kernel, modules in kernels().items()} == {
        "gemm/basic": ["tilewright.ops.gemm.kernels.basic"],
        "gemm/gluon_ws": ["tilewright.ops.gemm.kernels.gluon_ws"],
    }
    split = dataclasses.replace(GEMM.parse_name(NAMES[1]), split_k=2, scheduler="split_k")
    split = dataclasses.replace(split, reduction="two_stage")
    found = environment.kernel_sources([split], arch("sm_90"))
    assert [*found["gemm/basic"]] == [
        "tilewright.ops.gemm.kernels.basic",
        "tilewright.ops.gemm.kernels.totals",
    ]


def test_a_claim_is_current_while_its_kernels_have_their_sources():
    assert claims.stale(claim()) is None
    changed = {**kernels(), "gemm/basic": {"tilewright.ops.gemm.kernels.basic": "0" * 64}}
    assert claims.stale(claim(kernels=changed)) == "changed since: gemm/basic"
    gone = {"gemm/old": {"tilewright.ops.gemm.kernels.old": "0" * 64}}
    assert claims.stale(claim(kernels=gone)) == "changed since: gemm/old"


@pytest.mark.parametrize(
    "given",
    [
        {"environment": {}},
        {"environment": {"commit": None, "changed": None}},
        {"environment": {"commit": HEAD, "changed": True}},
        {"kernels": None},
    ],
)
def test_a_claim_without_its_proof_is_stale(given):
    assert claims.stale(claim(**given))


def test_host_times_need_no_kernels(tmp_path):
    record = claims.RESULTS / "toy.json"
    said = claims.load(claims.save_times("host-toy", {"a call": 4.1}, record, tmp_path))
    assert (said.claim, said.times_us, said.records) == ("host-toy", {"a call": 4.1}, ("toy.json",))
    known = {"commit": HEAD, "changed": False}
    assert claims.stale(dataclasses.replace(said, environment=known)) is None


def test_an_environment_says_all_and_null_for_what_a_machine_has_not():
    found = environment.environment()
    assert {"commit", "changed", "packages", "date", "command"} < found.keys()
    assert {"gpu", "driver", "cuda", "cublas", "cudnn", "clocks"} < found.keys()
    json.dumps(found)


class Nvml:
    """What nvidia-ml-py says of one GPU, which does not tell its memory's greatest clock."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == "GPU-1-2"
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        if kind == self.NVML_CLOCK_MEM:
            raise self.NVMLError
        return 2010


def test_on_a_gpu_libraries_and_clocks_are_read(monkeypatch):
    def refused(backend: str) -> None:
        raise LibraryRefused("none")

    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(libraries, "present", lambda of: SimpleNamespace(version=1301))
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    found = environment.environment()
    assert (found["gpu"], found["cublas"], found["cudnn"]) == ("NVIDIA H200", 1301, 91002)
    assert found["clocks"] == {
        "sm": {"now": 1980, "most": 2010},
        "memory": {"now": 3201, "most": None},
    }
    monkeypatch.setattr(libraries, "present", refused)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = environment.environment()
    assert (found["cublas"], found["clocks"]) == (None, None)


def git(folder, *words):
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one commit."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.delenv(environment.COMMIT, raising=False)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    who = ("-c", "user.name=one", "-c", "user.email=one@example.org")
    git(tmp_path, *who, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_checkout_says_its_commit_and_whether_it_was_changed(checkout):
    head = environment.commit()
    assert len(head) == 40
    results = checkout / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "new.json").write_text("{}")
    assert environment.commit() == head
    (checkout / "src" / "two.py").write_text("2\n")
    assert environment.commit() == f"{head}-changed"
    found = environment.environment()
    assert (found["commit"], found["changed"]) == (head, True)


def test_a_copy_without_git_asks_the_variable(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    for said, expected in (
        ("", (None, None)),
        (HEAD, (HEAD, False)),
        (f"{HEAD}-changed", (HEAD, True)),
    ):
        monkeypatch.setenv(environment.COMMIT, said)
        found = environment.environment()
        assert (found["commit"], found["changed"]) == expected


KERNEL = """
from . import helper

BLOCK = 1


def kernel(x):
    return x + BLOCK + helper.add(x)
"""
HELPER = "def add(x, flag=None):\n    return x + 1\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package ``own`` whose module ``kernel`` imports its module ``helper``."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernel.py", "BLOCK = 1\n", "# how many\nBLOCK = 1  # elements\n"),
        ("kernel.py", "BLOCK = 1\n", 'BLOCK = 1\n"""How many elements."""\n'),
        ("kernel.py", "\nfrom", '"""A kernel."""\n\nfrom'),
        ("kernel.py", "    return", '    """Add two numbers."""\n    return'),
        ("kernel.py", "x + BLOCK + helper.add(x)", "(\n        x + BLOCK + helper.add(x)\n    )"),
        ("helper.py", "    return", '    """Add one."""\n    # or two\n    return'),
    ],
)
def test_prose_does_not_change_a_sources_digest(own, file, old, new):
    assert changed(own / file, old, new) == environment.source_digest("own.kernel")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernel.py", "BLOCK = 1", "BLOCK = 2"),
        ("kernel.py", "BLOCK = 1", "BLOCK = 1.0"),
        ("kernel.py", "BLOCK = 1", "BLOCK = True"),
        ("kernel.py", "BLOCK = 1", "BLOCK = '1'"),
        ("kernel.py", "x + BLOCK", "x - BLOCK"),
        ("kernel.py", "    return", "    x = 'text'\n    return"),
        ("kernel.py", "def kernel(x)", "@helper.add\ndef kernel(x)"),
        ("helper.py", "x + 1", "x + 2"),
        ("helper.py", "    return", "    x += 1\n    return"),
        ("helper.py", "flag=None", "flag"),
        ("helper.py", "flag=None", "flag=''"),
    ],
)
def test_code_changes_a_sources_digest(own, file, old, new):
    assert changed(own / file, old, new) != environment.source_digest("own.kernel")


def test_a_function_that_moves_to_another_file_does_not_change_a_sources_digest(own):
    before = environment.source_digest("own.kernel")
    (own / "deeper").mkdir()
    (own / "deeper" / "__init__.py").write_text('"""Helpers."""\n')
    (own / "helper.py").rename(own / "deeper" / "helper.py")
    changed(own / "kernel.py", "from . import helper", "from own.deeper import helper")
    assert environment.source_digest("own.kernel") == before
    (own / "deeper" / "helper.py").write_text("from own.deeper.more import add\n")
    (own / "deeper" / "more.py").write_text(HELPER)
    assert environment.source_digest("own.kernel") != before  # `add` is imported now


def changed(file, old, new) -> str | None:
    """The kernel's digest before an edit, which is made here."""
    before = environment.source_digest("own.kernel")
    assert before and old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    return before


def test_a_sources_digest_is_the_same_in_every_python(own):
    (own / "kernel.py").write_text(
        "from . import helper\n\n\ndef kernel(x: int = 1, *, y=None) -> str:\n"
        "    return f'{x!r:>{y}} {x:02d}' 'and' f'{y=}'\n"
    )
    recorded = "a16abf8d73cf139279697d8139e7cd837cf158787bf829b44fb7cacee569aaa0"
    assert environment.source_digest("own.kernel") == recorded


def test_a_missing_module_has_no_digest(own):
    assert environment.source_digest("own.missing") is None

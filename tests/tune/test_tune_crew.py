"""What a crew does about faults, with workers whose answers are scripted."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gemm_cases import config

from patience import LIMIT_SECONDS
from tilewright.arch import device
from tilewright.child import ChildDied, ChildTimeout
from tilewright.compile import Store
from tilewright.errors import BadArgument
from tilewright.measure import crew as crew_module
from tilewright.measure import devices
from tilewright.measure.board import Board, Item
from tilewright.measure.crew import KILLED_ATTEMPTS, Crew, NoDeviceLeft, Task
from tilewright.measure.devices import Place, environment
from tilewright.measure.measurement import Settings
from tilewright.measure.station import KILLED_TRIES, OutOfOrder
from tilewright.ops.gemm import GemmProblem

H200 = device("h200_sxm")
PROBLEMS = [GemmProblem(64 * i, 64, 64) for i in range(1, 4)]
KERNELS = [config("sm_90", num_stages=stages).name for stages in (2, 3, 4, 5)]
TASKS = [Task(kernel, problem, "sm_90") for problem in PROBLEMS for kernel in KERNELS]
BAD = KERNELS[1]


class Script:
    """The workers of all places: what they are asked, and what goes wrong."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: list[tuple[str, str, str]] = []
        self.started: dict[str, int] = {}
        self.alive = 0
        self.dying: threading.Barrier | None = None
        self.canary_us: dict[str, float] = {}
        self.faults: dict[tuple[str, str], list[BaseException | dict]] = {}
        """By step and kernel: what comes instead of an answer, one each time."""

    def answer(self, uuid: str, message: dict) -> dict:
        step = message["do"]
        kernels = message.get("kernels", [message.get("kernel", "")])
        with self.lock:
            self.asked.append((uuid, step, " ".join(kernels)))
            for kernel in kernels:
                if left := self.faults.get((step, kernel)):
                    fault = left.pop(0)
                    if isinstance(fault, BaseException):
                        raise fault
                    return fault
        if step == "canary":
            return {"ok": True, "us": self.canary_us.get(uuid, 10.0)}
        if step == "verify":
            return {"status": "ok", "reason": "", "check": None}
        if step == "time":
            timed = {"samples_us": [1.0, 2.0], "interval_us": [1.0, 2.0], "flags": []}
            return {"kernels": dict.fromkeys(kernels, timed), "telemetry": {}}
        return {}


@pytest.fixture
def script(monkeypatch):
    made = Script()

    class FakeChild:
        pid = 2**22 + 1  # nobody's

        def __init__(self, module, env):
            self.uuid = env["CUDA_VISIBLE_DEVICES"]
            made.started[self.uuid] = made.started.get(self.uuid, 0) + 1
            made.alive += 1

        def request(self, message, timeout):
            return made.answer(self.uuid, message), []

        def kill(self):
            if made.dying is not None:
                made.dying.wait()
            with made.lock:
                made.alive -= 1

        def interrupt(self):
            pass

    monkeypatch.setattr(devices, "Child", FakeChild)
    return made


def crew(tmp_path, *uuids: str, **settings: object) -> Crew:
    places = [Place(uuid, environment("cuda"), H200) for uuid in uuids or ("GPU-a",)]
    return Crew(places, Store(tmp_path), Settings(**settings))


def complete(measured) -> bool:
    pairs = [(m.kernel, m.problem) for m in measured]
    return sorted(map(str, pairs)) == sorted(str((t.kernel, t.problem)) for t in TASKS)


def test_devices_that_are_alike_share_the_tasks_others_take_all(script, tmp_path):
    assert complete(crew(tmp_path, "GPU-a", "GPU-b").run(TASKS))
    other = Place("GPU-c", environment("cuda"), replace(H200, compute_units=100))
    places = [Place("GPU-a", environment("cuda"), H200), other]
    measured = list(Crew(places, Store(tmp_path), Settings()).run(TASKS))
    assert len(measured) == 2 * len(TASKS) == len({m.key for m in measured})
    with pytest.raises(BadArgument, match="for gfx942, but no device is"):
        Crew(places, Store(tmp_path), Settings()).run([Task(KERNELS[0], PROBLEMS[0], "gfx942")])


def test_devices_that_are_alike_under_other_versions_take_all(script, tmp_path):
    here = environment("cuda")
    there = replace(here, driver="1.0")
    with Crew(
        [Place("GPU-a", here, H200), Place("GPU-b", there, H200)], Store(tmp_path), Settings()
    ) as both:
        measured = list(both.run(TASKS))
        assert len(measured) == 2 * len(TASKS) == len({m.key for m in measured})
        assert complete([m for m in measured if m.environment == there])
        assert list(both.run(TASKS, {m.key for m in measured})) == []


def test_the_loss_of_a_devices_machine_is_no_kernels_fault(script, tmp_path):
    script.faults["verify", BAD] = [OutOfOrder("its node was lost")]
    both = crew(tmp_path, "GPU-a", "GPU-b", interleave=4)
    measured = list(both.run(TASKS))
    assert complete(measured) and {(m.status, m.attempts) for m in measured} == {("ok", 1)}
    assert [*both.out_of_order.values()] == ["its node was lost"]


def test_kernels_of_one_problem_take_turns_in_whatever_order_they_come(script, tmp_path):
    assert complete(crew(tmp_path, interleave=4).run(sorted(TASKS, key=lambda t: t.kernel)))
    timed = [kernels for _, step, kernels in script.asked if step == "time"]
    assert timed == [" ".join(sorted(KERNELS))] * len(PROBLEMS)
    script.asked.clear()
    assert complete(crew(tmp_path, interleave=3).run(TASKS))
    timed = [kernels for _, step, kernels in script.asked if step == "time"]
    assert timed == [" ".join(KERNELS[:3]), KERNELS[3]] * len(PROBLEMS)


def test_who_finds_nothing_to_do_waits_for_what_may_be_handed_back():
    batch = (Item(BAD, "", PROBLEMS[0], H200, environment("cuda")),)
    board, got = Board([batch]), []
    assert board.pull(board.kinds, "a") == batch
    other = threading.Thread(target=lambda: got.append(board.pull(board.kinds, "b")))
    other.start()
    other.join(0.1)
    assert other.is_alive()
    board.push(batch)
    other.join()
    assert got == [batch]
    board.stop()
    assert board.pull(board.kinds, "a") is None and board.left == 1


def test_each_hand_keeps_to_a_problem_and_then_helps_where_most_is_left():
    """Operands, and their float64 reference, are made once for each problem, not by every hand."""
    device, place = H200, environment("cuda")
    batches = [
        (Item(kernel, "", problem, device, place),) for problem in PROBLEMS for kernel in KERNELS
    ]
    board = Board(batches)

    def pulled(hand: str):
        [item] = board.pull(board.kinds, hand)
        return PROBLEMS.index(item.problem), KERNELS.index(item.kernel)

    assert [pulled(hand) for hand in "ababa"] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert [pulled("c"), pulled("a"), pulled("a")] == [(2, 0), (0, 3), (2, 1)], "most is left there"
    assert [pulled("a"), pulled("b")] == [(2, 2), (1, 2)]
    # What is handed back is its problem's next.
    board.push(batches[4])
    assert [pulled(hand) for hand in "bab"] == [(1, 0), (2, 3), (1, 3)]


def test_a_suspect_is_retried_alone_and_its_neighbours_are_measured_again(script, tmp_path):
    script.faults["verify", BAD] = [ChildTimeout("late")]
    with crew(tmp_path) as one:
        measured = list(one.run(TASKS[:4]))
    assert {m.kernel: (m.status, m.attempts) for m in measured} == {
        kernel: ("ok", 2 if kernel == BAD else 1) for kernel in KERNELS
    }
    assert script.started == {"GPU-a": 3}, "the second, and one that waits to replace it"
    assert script.alive == 0
    steps = [step for _, step, _ in script.asked]
    assert steps.count("canary") == 2 and steps.count("open") == 2
    timed = [kernels for _, step, kernels in script.asked if step == "time"]
    assert sorted(timed) == sorted([BAD, " ".join(k for k in KERNELS if k != BAD)])


def test_a_kernel_that_lost_two_workers_is_blamed_and_later_tried_once_by_itself(script, tmp_path):
    fault = {"status": "illegal_access", "reason": "wild", "lost": True}
    script.faults["verify", BAD] = [fault] * 9
    with crew(tmp_path) as one:
        measured = list(one.run(TASKS))
        assert script.alive == 2, "a worker and a spare"
    assert complete(measured) and not script.alive
    bad = [m for m in measured if m.kernel == BAD]
    assert [(m.status, m.attempts) for m in bad] == [("illegal_access", n) for n in (2, 1, 1)]
    assert all(m.status == "ok" and m.attempts == 1 for m in measured if m.kernel != BAD)
    assert script.started == {"GPU-a": 6}, "one for each fault, the first, and the spare"
    again = [kernel for _, step, kernel in script.asked if (step, kernel) == ("verify", KERNELS[0])]
    assert len(again) == len(PROBLEMS) + 1, "only the first fault cost its neighbours anything"


def test_workers_of_a_crew_with_other_settings_start_before_it_runs(script, tmp_path):
    with crew(tmp_path) as one, one.measuring(Settings(take=1)) as other:
        assert (script.started, script.asked) == ({"GPU-a": 1}, []), "none opens its device yet"
        measured = list(other.run(TASKS))
        assert complete(measured) and {m.settings.take for m in measured} == {1}
        assert script.started == {"GPU-a": 1}
    assert not script.alive


def test_workers_end_at_the_same_time(script, tmp_path):
    with crew(tmp_path, *(f"GPU-{number}" for number in range(8))) as many:
        many.prepare()
        assert script.alive == 8
        script.dying = threading.Barrier(8, timeout=LIMIT_SECONDS)  # none ends before all are told
    assert not script.alive


def test_when_timing_loses_the_worker_each_is_tried_alone(script, tmp_path):
    script.faults["time", BAD] = [ChildDied(-11, ""), ChildDied(-11, "")]
    measured = {m.kernel: m for m in crew(tmp_path).run(TASKS[:4])}
    assert {k: m.status for k, m in measured.items()} == {
        k: "crashed" if k == BAD else "ok" for k in KERNELS
    }
    assert "SIGSEGV" in measured[BAD].reason


def test_an_amd_gpus_fault_ends_the_process_and_is_known_by_its_words(script, tmp_path):
    words = "Memory access fault by GPU node-1 on address 0x10. Reason: Unknown."
    script.faults["verify", BAD] = [ChildDied(-6, words), ChildDied(-6, words)]
    (bad,) = [m for m in crew(tmp_path).run(TASKS[:4]) if m.status != "ok"]
    assert bad.status == "illegal_access" and bad.kernel == BAD


def test_faults_that_leave_the_worker_well_do_not_cost_it(script, tmp_path):
    refused = {"status": "launch_failed", "reason": "too much shared memory"}
    script.faults["verify", BAD] = [refused] * 6
    measured = list(crew(tmp_path).run(TASKS))
    assert complete(measured) and script.started == {"GPU-a": 1}
    assert {(m.status, m.attempts) for m in measured if m.kernel == BAD} == {("launch_failed", 2)}


def test_operands_that_do_not_fit_are_nobodys_loss(script, tmp_path):
    script.faults["problem", ""] = [{"status": "out_of_memory", "reason": "large"}] * 5
    measured = list(crew(tmp_path).run(TASKS))
    assert complete(measured)
    assert {m.problem for m in measured if m.status != "ok"} == {PROBLEMS[0]}


def test_somebodys_kill_is_not_held_against_the_kernel_for_long(script, tmp_path):
    script.faults["verify", BAD] = [ChildDied(-9, "")] * (KILLED_ATTEMPTS - 1)
    assert {m.status for m in crew(tmp_path).run(TASKS)} == {"ok"}
    script.faults["verify", BAD] = [ChildDied(-9, "")] * KILLED_ATTEMPTS
    measured = list(crew(tmp_path).run(TASKS))
    (bad,) = [m for m in measured if m.status != "ok"]
    assert complete(measured) and bad.status == "crashed" and "SIGKILL" in bad.reason


def test_a_device_that_fails_its_canary_twice_is_out_and_the_rest_go_on(script, tmp_path):
    fault = {"status": "illegal_access", "reason": "wild", "lost": True}
    both = crew(tmp_path, "GPU-a", "GPU-b")
    assert complete(both.run(TASKS))  # both have measured their first canary

    answer = script.answer

    def breaking(uuid, message):
        if message["do"] == "verify" and message["kernel"] == BAD and not script.canary_us:
            script.canary_us[uuid] = 100.0
            return fault
        return answer(uuid, message)

    script.answer = breaking
    measured = list(both.run(TASKS))
    assert complete(measured)
    (broken,) = both.out_of_order.items()
    assert "canary took 100 µs, 10 µs before" in broken[1]
    (bad,) = [m for m in measured if m.status != "ok"]
    assert bad.kernel == BAD and bad.attempts == 1 and "after it, the device" in bad.reason
    assert complete(both.run(TASKS)), "with the device that is left"


def test_without_a_device_left_the_remaining_tasks_are_said_not_to_be_measured(script, tmp_path):
    one = crew(tmp_path, interleave=2)
    right, wrong = {"ok": True, "us": 1.0}, {"ok": False, "us": 1.0}
    script.faults["canary", ""] = [right, wrong, wrong]
    script.faults["verify", KERNELS[2]] = [ChildTimeout("late")]
    run = one.run(TASKS[:4])
    assert [next(run).status for _ in range(3)] == ["ok", "ok", "timeout"]
    with pytest.raises(NoDeviceLeft, match=r"1 measurements were not made.*small product wrong"):
        next(run)
    with pytest.raises(NoDeviceLeft, match="4 measurements"):
        list(one.run(TASKS[:4]))


def test_a_worker_that_is_always_killed_does_not_go_on_for_ever(script, tmp_path):
    one = crew(tmp_path)
    script.faults["open", ""] = [ChildDied(-9, "")] * (KILLED_TRIES - 1)
    assert complete(one.run(TASKS))
    one.close()
    script.faults["open", ""] = [ChildDied(-9, "")] * KILLED_TRIES
    with pytest.raises(NoDeviceLeft, match="SIGKILL"):
        list(one.run(TASKS))


def test_a_device_that_works_for_others_too_is_said_once(script, tmp_path, caplog):
    timed = {"samples_us": [1.0], "interval_us": [1.0, 1.0], "flags": ["contended"]}
    answer = {"kernels": dict.fromkeys(KERNELS, timed), "telemetry": {"others": 2}}
    script.faults["time", KERNELS[0]] = [answer] * 2
    assert complete(crew(tmp_path).run(TASKS))
    assert caplog.text.count("also works for 2 other processes") == 1


def shares(script, monkeypatch, took):
    """By kernel the seconds that measurements say, where steps take so many of a clock's; and the
    clock."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(crew_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    answer = script.answer

    def slow(uuid, message):
        clock.now += took(message["do"], message.get("kernel", ""))
        return answer(uuid, message)

    script.answer = slow
    return clock


def test_a_measurement_says_its_own_share_of_the_time(script, tmp_path, monkeypatch):
    seconds = {"problem": 8.0, "verify": 1.0, "time": 4.0}
    script.faults["verify", BAD] = [{"status": "nan", "reason": "NaN"}]
    took = lambda step, kernel: seconds.get(step, 0.0) * (5 if kernel == BAD else 1)  # noqa: E731
    clock = shares(script, monkeypatch, took)
    measured = {m.kernel: m.seconds for m in crew(tmp_path).run(TASKS[:4])}
    assert measured == {k: 2 + 5 if k == BAD else 2 + 1 + 4 / 3 for k in KERNELS}
    assert sum(measured.values()) == pytest.approx(clock.now - 100)


def test_time_in_vain_is_the_suspects_and_none_is_lost(script, tmp_path, monkeypatch):
    seconds = {"problem": 4.0, "verify": 1.0, "time": 2.0, "canary": 16.0}
    script.faults["verify", BAD] = [ChildTimeout("late")] * 2
    took = lambda step, kernel: seconds.get(step, 0.0) * (30 if kernel == BAD else 1)  # noqa: E731
    clock = shares(script, monkeypatch, took)
    measured = {m.kernel: m.seconds for m in crew(tmp_path).run(TASKS[:4])}
    assert sum(measured.values()) == pytest.approx(clock.now - 100 - 16), "all but the first start"
    assert measured[BAD] == 4 / 4 + 30 + 16 + 4 + 30 + 16, "both tries, with what they broke"


def test_what_is_known_is_not_measured(script, tmp_path):
    one = crew(tmp_path)
    known = {m.key for m in one.run(TASKS)}
    assert known == {key for task in TASKS for key in one.keys(task)}
    assert list(one.run(TASKS, known)) == []
    more = Task(config("sm_90", num_stages=6).name, PROBLEMS[0], "sm_90")
    assert [m.kernel for m in one.run([*TASKS, more], known)] == [more.kernel]


def test_an_error_of_our_own_ends_the_run_with_it(script, tmp_path):
    script.faults["verify", BAD] = [RuntimeError("ours")]
    with pytest.raises(RuntimeError, match="ours"):
        list(crew(tmp_path).run(TASKS))


def test_bad_arguments(tmp_path):
    with pytest.raises(BadArgument, match="needs a device"):
        Crew([], Store(tmp_path), Settings())
    with pytest.raises(BadArgument, match="timeout = 0"):
        Crew([Place("GPU-a", environment("cuda"), H200)], Store(tmp_path), Settings(), timeout=0)

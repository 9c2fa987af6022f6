"""The page in a real browser: it draws, and all of it works by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, missing
from synthetic import ENVIRONMENT, H200, kernel, one, problem, sweep

from tilewright import GemmProblem
from tilewright.measure.measurement import Settings
from tilewright.measure.results import Results
from tilewright.report import write

pytestmark = pytest.mark.skipif(
    bool(missing()),
    reason=f"needs {' and '.join(missing())} (Debian: chromium chromium-driver)",
)

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    with Results(folder, write=True) as kept:
        kept.add(sweep(8, 20))
        kept.add([one("gemm_first", problem(30), 10), one("gemm_last", problem(30), 20)])
        kept.add([one("gemm_last", problem(31), 1, "crashed", reason=HOSTILE)])
        other = replace(ENVIRONMENT, driver="590.10")
        kept.add([one(kernel(i), problem(0), 10 + i, environment=other) for i in range(3)])
        kept.add([one(kernel(0), problem(0), 900, settings=Settings(timer="wall"))])
    write(folder, folder / "page.html")
    return folder / "page.html"


@pytest.fixture(autouse=True)
def opened(browser: Browser, page: Path) -> Iterator[None]:
    browser.look(1200)
    browser.open(page)
    yield
    assert browser.log() == []


def rows(browser: Browser, table: str = "#best") -> list[str]:
    found: list[str] = browser.run(
        "return [...document.querySelectorAll(`${arguments[0]} tbody tr`)]"
        ".map((row) => row.cells[0].textContent)",
        table,
    )
    return found


def focus(browser: Browser, selector: str) -> None:
    browser.run("document.querySelector(arguments[0]).focus()", selector)


def test_it_shows_every_problem_and_failure(browser):
    shown = set(rows(browser))
    assert shown == {str(problem(i)) for i in (*range(20), 30, 31)}
    assert HOSTILE in browser.text("#failures")
    assert browser.run("return document.title").startswith("Tilewright")
    assert browser.run("return document.images.length") == 0
    assert "none: 1 crashed" in browser.text("#best")


def test_search_narrows_the_table_and_the_heat_map(browser):
    before = browser.run("return document.querySelector('#heat').width")
    focus(browser, "#search")
    browser.press(*"GEMM_first")
    assert rows(browser) == [str(problem(30))]
    assert browser.text("#search-count") == "1 of 22 problems"
    assert browser.run("return document.querySelector('#heat').width") < before
    assert str(problem(30)) in browser.text("#heat-cell")
    browser.press(*" and nothing like it")
    assert rows(browser) == []
    assert "No problem is found" in browser.text("#heat-cell")


def test_enter_on_a_heading_sorts_and_keeps_the_focus(browser):
    heading = "#best thead th:nth-child(4)"
    focus(browser, f"{heading} button")
    read = (
        "return [...document.querySelectorAll('#best tbody tr')]"
        ".map((row) => row.cells[3].textContent).filter(Boolean).map(Number)"
    )
    browser.press("Enter")
    times = browser.run(read)
    assert times == sorted(times)
    assert (
        browser.run("return document.querySelector(arguments[0]).ariaSort", heading) == "ascending"
    )
    browser.press("Enter")
    assert browser.run(read) == times[::-1] != times
    assert (
        browser.run("return document.querySelector(arguments[0]).ariaSort", heading) == "descending"
    )
    assert rows(browser)[-1] == str(problem(31))  # nothing to sort by: last either way


def test_arrow_keys_read_the_heat_map_aloud(browser):
    focus(browser, "#heat")
    first = browser.text("#heat-cell")
    order = rows(browser, "#kernels")
    problems = rows(browser)
    assert order[0] in first
    assert problems[0] in first
    browser.press("ArrowDown", "ArrowRight", "ArrowRight")
    assert order[1] in browser.text("#heat-cell")
    assert problems[2] in browser.text("#heat-cell")
    browser.press("End", "PageDown")
    assert problems[-1] in browser.text("#heat-cell")
    assert order[-1] in browser.text("#heat-cell")
    browser.press("Home", "ArrowLeft")
    assert problems[0] in browser.text("#heat-cell")
    assert browser.run("return document.querySelector('#heat-cell').role") == "status"


def test_the_heat_map_says_speed_status_and_reason(browser):
    focus(browser, "#search")
    browser.press(*str(problem(30)))
    shown = {}
    focus(browser, "#heat")
    for name in rows(browser, "#kernels"):
        shown[name] = browser.text("#heat-cell")
        browser.press("ArrowDown")
    assert "100.0 % of the best kernel's speed, 10.00 µs" in shown["gemm_first"]
    assert "50.0 % of the best kernel's speed, 20.00 µs" in shown["gemm_last"]
    assert "not measured" in shown[kernel(0)]


def test_the_legend_shows_one_kind_alone(browser):
    paint = "return document.querySelector('#heat').toDataURL()"
    whole = browser.run(paint)
    focus(browser, "#legend button:last-child")
    browser.press("Enter")
    alone = browser.run(paint)
    assert alone != whole
    pressed = "return document.querySelector('#legend button:last-child').ariaPressed"
    assert browser.run(pressed) == "true"
    browser.press("Enter")
    assert browser.run(pressed) == "false"
    assert browser.run(paint) == whole


def test_arrow_keys_go_along_the_roofline(browser):
    focus(browser, "#roof")
    first = browser.text("#roof-point")
    browser.press("ArrowRight")
    assert browser.text("#roof-point") != first
    browser.press("ArrowLeft")
    assert browser.text("#roof-point") == first
    assert "of the roof" in first


def test_groups_are_shown_one_at_a_time(browser):
    options = browser.run(
        "return [...document.querySelectorAll('#setup option')].map((o) => o.textContent)"
    )
    assert len(options) == 3
    focus(browser, "#setup")
    for label in options[1:]:
        browser.press("ArrowDown")
        assert label in browser.text("#chosen")
        assert label.startswith("interpreter as") == ("timer wall" in label)
        assert rows(browser) == [str(problem(0))]
        assert "was not measured here" in browser.text("#vendor-note")
        wall = "timer wall" in label
        assert ("nothing about a GPU" in browser.text("#roof-note")) == wall
        assert browser.run("return document.querySelector('#roof-figure').hidden") == wall
        assert ("590.10" in browser.text("#environment")) == ("590.10" in label)


def test_tab_reaches_everything_and_the_focus_is_seen(browser):
    operable = "a, select, input, button, summary, [tabindex='0']"
    wanted = browser.run("return document.querySelectorAll(arguments[0]).length", operable)
    seen = set()
    unseen = []
    for _ in range(wanted):
        browser.press("Tab")
        where, outline = browser.run(
            "const e = document.activeElement, all = [...document.querySelectorAll('*')];"
            "const s = getComputedStyle(e);"
            "return [all.indexOf(e), s.outlineStyle + ' ' + s.outlineWidth]"
        )
        seen.add(where)
        if outline != "solid 3px":
            unseen.append(where)
    assert len(seen) == wanted
    assert not unseen


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_window_in_dark_and_in_light(browser, page, width, dark):
    browser.look(width, dark=dark)
    browser.open(page)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    text, ground = browser.run(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
        ".map((c) => c.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
    )
    assert (text > ground) == dark
    assert abs(text - ground) > 500


def test_tables_have_captions_and_headings_that_name_rows_and_columns(browser):
    tables, captions, rowed = browser.run(
        "const of = (s) => document.querySelectorAll(s).length;"
        "return [of('table'), of('table > caption'), of('tbody tr') - of('tbody th[scope=row]')]"
    )
    assert tables == captions == 5
    assert rowed == 0


@pytest.mark.parametrize(
    ("vendor", "said"), [(20, "2.000 faster"), (5, "0.500 slower"), (10.1, "1.010 alike")]
)
def test_ties_and_the_ratio_to_the_vendor(browser, tmp_path, vendor, said):
    with Results(tmp_path, write=True) as kept:
        made = {"gemm_a": 10, "gemm_b": 10.1, "gemm_c": 12, "vendor.cublas": vendor}
        kept.add([one(name, problem(0), us) for name, us in made.items()])
    write(tmp_path, tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    focus(browser, "#best summary")
    browser.press("Enter")
    browser.until("return document.querySelector('#best details li')")  # filled once it opened
    best = browser.text("#best tbody")
    assert said in best
    assert "Kernels\n3\n" in browser.text("#summary"), "the vendor's is none"
    assert "gemm_a\nand 1 alike\ngemm_b: 10.10 µs" in best
    assert "gemm_c" not in best


def test_a_sweep_in_which_nothing_was_timed(browser, tmp_path):
    with Results(tmp_path, write=True) as kept:
        kept.add([one(kernel(0), problem(i), 1, "crashed") for i in range(2)])
    write(tmp_path, tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert "none: 1 crashed" in browser.text("#best")
    assert browser.text("#roof-note") == "No kernel was timed."
    assert "2 failures" in browser.text("#failures")
    assert "crashed" in browser.text("#heat-cell")
    assert "throttled" in browser.text("#flags")  # the last thing but one that is drawn


def test_an_empty_product_has_no_place_in_the_roofline(browser, tmp_path):
    with Results(tmp_path, write=True) as kept:
        kept.add([one(kernel(0), GemmProblem(64, 64, k), 2) for k in (0, 64)])
    write(tmp_path, tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert len(rows(browser)) == 2
    focus(browser, "#roof")
    browser.press("End")
    assert str(GemmProblem(64, 64, 64)) in browser.text("#roof-point")
    assert "NaN" not in browser.text("main")


def test_names_of_devices_are_there(browser):
    assert H200.name in browser.text("#environment")

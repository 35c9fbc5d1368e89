"""The page of the curves, in Chromium."""

from __future__ import annotations

import pathlib
import re

import pytest
from browser_pages import expect, wait_until_drawn

from bert_tf2.training import monitor


def chart(page, name):
    return page.locator(".line-chart", has=page.get_by_role("application", name=re.compile(f"^{name} by step")))


def test_every_number_has_a_chart_with_all_runs(open_page):
    page = open_page("#training")
    names = [heading.inner_text() for heading in page.get_by_role("heading", level=3).all()]
    assert names == ["loss", "masked_lm_accuracy", "learning_rate", "gradient_norm", "examples/sec"]
    legend = chart(page, "loss").locator("li").all_inner_texts()
    assert legend == ["first_run", "first_run, evaluation", "second_run"]
    assert "Not finite at some steps: second_run." in page.locator("main").inner_text()
    gaps = [path.get_attribute("d").count("M") for path in chart(page, "loss").locator("path").all()]
    assert gaps == [1, 1, 2]


def test_values_are_read_with_the_mouse_and_the_keyboard(open_page):
    page = open_page("#training")
    loss = page.get_by_role("application", name=re.compile("^loss by step"))
    loss.focus()
    page.keyboard.press("Home")
    expect(chart(page, "loss")).to_contain_text("step 0: first_run 7.000, second_run 8.000")
    page.keyboard.press("End")
    expect(chart(page, "loss")).to_contain_text("step 180: first_run 1.1")
    page.get_by_role("application", name=re.compile("^gradient_norm by step")).hover(position={"x": 60, "y": 60})
    expect(chart(page, "gradient_norm")).to_contain_text(re.compile(r"step \d+: first_run 2.000, second_run 1.000"))


def test_smoothing_keeps_what_was_measured_behind_it(open_page):
    page = open_page("#training")
    slider = page.get_by_label("Smoothing")
    slider.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert "smooth=0.95" in page.url and chart(page, "loss").locator("path.faint").count() == 2
    read = page.evaluate(
        """async () => (await import("./training.js")).smoothed([[0, 4], [1, 8], [2, null], [3, 8]], 0.5)"""
    )
    assert read == [[0, 4], [1, 20 / 3], [2, None], [3, (4 / 4 + 8 / 2 + 8) / 1.75]]


@pytest.fixture
def add_point(trainings):
    """add_point(step, loss) writes a point to the first run, for this test only."""
    folder = pathlib.Path(trainings[0])
    before = {*folder.iterdir()}
    yield lambda step, loss: monitor.write_scalars(str(folder), step, {"loss": loss})
    for path in {*folder.iterdir()} - before:
        path.unlink()


def test_a_training_that_runs_is_read_again(open_page, add_point):
    add_point(300, 0.6)  # now: the last point of a training that runs is new
    page = open_page()
    page.clock.install()
    page.evaluate("location.hash = '#training'")
    page.wait_for_selector(".line-chart")
    wait_until_drawn(page)
    add_point(400, 0.5)
    page.clock.run_for(11_000)
    page.get_by_role("status").get_by_text("first_run: 400 steps").wait_for()
    chart(page, "loss").get_by_role("application").focus()
    page.keyboard.press("End")
    expect(chart(page, "loss")).to_contain_text("step 400: first_run 0.500")

"""The page of the positions, in Chromium."""

from __future__ import annotations

import re

from browser_pages import expect


def test_the_two_tables_are_beside_each_other_with_their_figures(open_page):
    page = open_page("#positions")
    assert page.get_by_role("application", name=re.compile("heat map|similarity|positions")).count() >= 2
    rows = page.get_by_role("region", name="Figures that compare the learned positions with others").get_by_role("row")
    assert "correlation of the similarities" in rows.nth(1).inner_text()
    assert re.search(r"\d\.\d %", rows.nth(2).inner_text())
    for heading in ("Why learned, and not predefined?", "Are they alike?", "How many directions do they use?"):
        assert page.get_by_role("heading", name=heading).is_visible()


def test_pointing_at_a_cell_reads_it(open_page):
    page = open_page("#positions")
    learned = page.get_by_role("application", name="cosine of the positions, learned")
    learned.hover(position={"x": 2, "y": 2})
    expect(page.locator(".heat-map").first).to_contain_text("0 and 0: 1.000")


def test_the_keyboard_reads_cells_and_curves(open_page):
    page = open_page("#positions")
    page.get_by_role("application", name="cosine of the positions, sinusoid").focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".heat-map").nth(1)).to_contain_text("0 and 3: ")
    page.get_by_role("application", name=re.compile("Norm by position")).focus()
    page.keyboard.press("End")
    expect(page.locator(".line-chart").last).to_contain_text("position 47: norm ")


def test_another_measure_and_fewer_rows_stay_in_the_address(open_page):
    page = open_page("#positions")
    page.get_by_label("Similarity").select_option("dot")
    expect(page.get_by_role("application", name="dot product of the positions, learned")).to_be_visible()
    rows = page.get_by_label("Rows, from the first")
    rows.fill("12")
    rows.press("Enter")
    page.wait_for_selector(".cells[style*='--rows: 12']")
    assert "rows=12" in page.url and "measure=dot" in page.url
    page.reload()
    page.wait_for_selector("main:not([aria-busy=true])")
    expect(page.get_by_label("Rows, from the first")).to_have_value("12")
    rows.fill("99")  # out of range
    rows.press("Enter")
    expect(rows).to_have_value("12")

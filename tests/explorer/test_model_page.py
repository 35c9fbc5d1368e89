"""The page of the variables, in Chromium."""

from __future__ import annotations

import re

from browser_pages import expect


def test_the_totals_and_the_shared_table(open_page):
    page = open_page("#model")
    parts = page.get_by_role("table", name="Parameters by part")
    assert re.search(r"embeddings\s+15,040", parts.inner_text())  # (888 + 2 + 48 + 2) * 16
    assert "888 x 16 = 14,208 parameters" in page.locator("main").inner_text()
    copies = page.get_by_role("region", name="Names of Hugging Face that are one array")
    assert "cls.predictions.decoder.weight" in copies.inner_text()


def test_the_positions_are_read_with_the_mouse_and_the_keyboard(open_page):
    page = open_page("#model")
    cells = page.get_by_role("application", name="Cosines of the positions")
    cells.hover(position={"x": 2, "y": 2})
    expect(page.locator(".heat-map")).to_contain_text("0 and 0: 1.00")
    cells.focus()
    page.keyboard.press("End")
    expect(page.locator(".heat-map")).to_contain_text("0 and 47: ")


def test_finding_sorting_and_choosing_a_variable(open_page):
    page = open_page("#model")
    page.get_by_label("Find").fill("attention.self.query")  # the name in Hugging Face
    table = page.get_by_role("region", name="Variables", exact=True)
    expect(table.get_by_role("row")).to_have_count(1 + 4)
    expect(page.locator("p[role=status]")).to_contain_text("4 of 46 variables")
    page.get_by_label("Part", exact=True).select_option("block 1")
    page.get_by_label("Sort by").select_option("parameters")
    assert "query/kernel" in table.get_by_role("row").nth(1).inner_text() and table.get_by_role("row").count() == 3
    table.get_by_role("button", name="bert/encoder/layer_1/attention/self/query/bias", exact=True).press("Enter")
    details = page.locator(".detail").inner_text()
    assert "model.bert.blocks[1].attention.query.bias" in details and "transformer/layer_1/self_attention" in details
    assert "variable=" in page.url
    page.reload()
    page.wait_for_selector(".detail")
    page.get_by_role("button", name="Close").first.click()
    expect(page.locator(".detail")).to_have_count(0)

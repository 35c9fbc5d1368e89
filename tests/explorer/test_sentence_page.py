"""The view of a sentence in Chromium: typing, choosing, pointing, the keyboard alone, reloading."""

from __future__ import annotations

import re

import pytest
from browser_pages import expect
from explorer_model import serving

from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions

PAIR = "#sentence?text=Paris+is+in+France.&text_b=It+is+%5BMASK%5D."


def matrix(page):
    return page.locator("#attention .heat-map")


def test_pointing_at_the_matrix(open_page, explorer):
    page = open_page(PAIR)
    cells = matrix(page).locator(".cells")
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    size = box["width"] / 12
    page.mouse.move(box["x"] + 4.5 * size, box["y"] + 1.5 * size)  # from row 1 to column 4
    told = matrix(page).get_by_role("status")
    expect(told).to_have_text(re.compile(r"from paris \(1\) to france \(4\): [\d.]+ %"))
    assert page.locator(".lines line.chosen").first.get_attribute("data-from") == "1"
    page.mouse.click(box["x"] + 4.5 * size, box["y"] + 1.5 * size)
    expect(page.get_by_role("heading", name="One weight: from paris (1) to france (4)")).to_be_visible()
    share = told.inner_text().rsplit(": ", 1)[1]
    expect(page.locator(".steps li").last).to_contain_text(share)


def test_the_keyboard_alone(page):
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(3):  # the tabs, then the first field
        page.keyboard.press("Tab")
    expect(page.get_by_label("Sentence, with [MASK]")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("Rome is [MASK].")
    page.keyboard.press("Enter")
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    expect(tokens).to_have_text(["[CLS]", "rome", "is", "[MASK]", ".", "[SEP]"])
    expect(page.locator(".guesses li")).to_contain_text("For [MASK] (token 3) the model says: ")
    expect(page.locator("#announcer")).to_have_text("6 tokens, 1 of them [MASK]")
    tokens.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#embeddings h3")).to_have_text("For rome at position 1")
    expect(tokens.nth(1)).to_be_focused()
    expect(matrix(page)).to_contain_text("rome")  # each part of the page is drawn when its own answer is there
    cells = matrix(page).locator(".cells")
    cells.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(matrix(page).get_by_role("status")).to_have_text(re.compile(r"from rome \(1\) to is \(2\): "))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="One weight: from rome (1) to is (2)")).to_be_visible()


def test_the_words_of_a_mask(open_page, explorer):
    page = open_page(PAIR)
    rows = page.get_by_role("region", name="The most probable words").get_by_role("row")
    expect(rows).to_have_count(1 + 10)
    (mask,) = explorer.bert.fill_mask("Paris is in France. ||| It is [MASK].").masks
    assert rows.nth(1).inner_text().split()[0] == mask.predictions[0].token
    expect(page.locator(".guesses")).to_contain_text(mask.predictions[0].token)
    second = rows.nth(2).get_by_role("button")
    second.click()
    expect(page.get_by_role("heading", name=f"The dot product for {second.inner_text()}")).to_be_visible()
    page.get_by_label("Take the state of").select_option("1")
    expect(page.get_by_role("heading", name="with the state of paris (1)")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="with the state of paris (1)")).to_be_visible()


def test_a_mistake_is_told_and_leaves_the_page_usable(browser, address):
    pages = browser.pages(address)  # the browser itself logs the status 400
    page = pages.open()
    box = page.get_by_label("Sentence, with [MASK]")
    box.fill("a [mask]")
    with page.expect_response("**/api/sentence") as answered:
        box.press("Enter")
    assert answered.value.status == 400
    expect(page.get_by_role("alert")).to_contain_text("a blank is written [MASK], in capitals")
    expect(page.locator("#attention")).to_be_hidden()  # it is of another sentence
    box.fill("a [MASK]")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".guesses li")).to_have_count(1)
    expect(page.locator("#attention")).to_be_visible()
    box.fill(" ")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The sentence is empty")
    pages.close()
    assert len(pages.problems) == 2 and "status of 400" in pages.problems[0]


def test_all_heads_at_a_glance(open_page):
    page = open_page(PAIR)
    maps = page.locator(".map")
    expect(maps).to_have_count(4)  # 2 layers of 2 heads
    maps.nth(3).click()
    expect(maps.nth(3)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#attention")).to_contain_text("Layer 1, head 1 of 2")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("#attention")).to_contain_text("Layer 0, head 1 of 2")
    page.reload()
    expect(page.locator("#attention")).to_contain_text("Layer 0, head 1 of 2")
    told = maps.nth(1).get_attribute("title")
    assert re.fullmatch(r"Layer 0, head 1: \[MASK\] \(9\) looks at .+ \(\d+\), [\d.]+ %", told)
    looks = page.get_by_role("button", name="Head 1").locator(".looks").inner_text()
    assert looks.split("\u2192 ")[1].split()[0] in told and looks.rsplit(" ", 2)[1] in told


def test_two_sentences_side_by_side(open_page, explorer):
    page = open_page("#sentence?text=Paris+is+in+%5BMASK%5D.&other_text=Rome+is+in+%5BMASK%5D.")
    pair = page.locator("#pair")
    (mask,) = explorer.bert.fill_mask("Rome is in [MASK].").masks
    best = max(mask.predictions, key=lambda each: each.probability)
    row = pair.get_by_role("table", name="Answers for the other sentence").first.get_by_role(
        "row", name=best.token, exact=False
    )
    share = float(row.first.locator(".number").inner_text().removesuffix(" %"))
    assert share == pytest.approx(100 * best.probability, abs=0.06)
    states = pair.locator(".heat-map").first
    cells = states.locator(".cells")
    cells.focus()
    cells.press("ArrowRight")
    expect(states.get_by_role("status")).to_have_text(re.compile(r"paris / rome, after the embeddings: 0?\.\d+|1\.\d+"))
    cells.press("ArrowRight")
    expect(states.get_by_role("status")).to_have_text("is, after the embeddings: 0")
    cells.press("ArrowDown")
    expect(states.get_by_role("status")).not_to_have_text("is, after layer 0: 0")
    other = page.get_by_label("Another sentence, for example")
    other.fill("Rome is in the [MASK].")
    other.press("Enter")
    expect(page.get_by_label("Another sentence, for example")).to_have_value("Rome is in the [MASK].")
    expect(pair.locator(".heat-map .above").first.locator("span > span")).to_have_text(
        ["[CLS]", "[MASK]", ".", "[SEP]"]
    )


@pytest.fixture(scope="module")
def classifier_address(classifier):
    with serving(Explorer(ExplorerOptions(model=classifier))) as address:
        yield address


def test_a_classifier_has_its_own_output(browser, classifier_address):
    pages = browser.pages(classifier_address)
    page = pages.open()
    expect(page.locator("#words")).to_contain_text("These weights have no masked-LM head")
    expect(page.locator("#words")).not_to_contain_text("saves")
    assert "[MASK]" not in page.locator("form").first.inner_text()
    expect(page.get_by_role("table", name="Classifier").get_by_role("row")).to_have_count(2)
    expect(page.locator("#attention")).to_contain_text("Layer 0, head 0")
    pages.close()
    assert pages.problems == []

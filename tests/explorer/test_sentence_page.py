"""The view of a sentence in Chromium: typing, choosing, pointing, the keyboard alone, reloading."""

from __future__ import annotations

import re
import threading

import pytest
from browser_pages import PHONE, expect

from bert_tf2.explorer import server
from bert_tf2.explorer.opened import Explorer
from bert_tf2.explorer.options import ExplorerOptions

PAIR = "#sentence?text=Paris+is+in+France.&text_b=It+is+%5BMASK%5D."


def matrix(page):
    return page.locator("#attention .heat-map")


def test_typing_a_sentence(page):
    box = page.get_by_label("Sentence, with [MASK]")
    box.fill("The [MASK] is in [MASK].")
    box.press("Enter")
    guesses = page.locator(".guesses li")
    expect(guesses).to_have_count(2)
    expect(guesses.nth(0)).to_contain_text("[MASK] (2): ")
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    expect(tokens).to_have_text(["[CLS]", "the", "[MASK]", "is", "in", "[MASK]", ".", "[SEP]"])
    expect(tokens.nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#announcer")).to_have_text("8 tokens, 2 of them [MASK]")


def test_a_pair_is_one_array(open_page):
    page = open_page(PAIR)
    row = page.locator(".tokens tr").nth(2)
    assert row.inner_text().split() == ["segment_ids", *"0000000", *"11111"]
    expect(page.locator("#tokens")).to_contain_text("Both sentences stand in one array")


def test_choosing_a_token_a_layer_and_a_head(open_page):
    page = open_page(PAIR)
    page.get_by_role("region", name="Tokens").get_by_role("button", name="france").click()
    expect(page.locator("#embeddings h3")).to_have_text("For france at position 4")
    expect(page.locator("#block h3").first).to_have_text("france (4) in layer 0")
    expect(page.get_by_role("heading", name="Where france (4) looks")).to_be_visible()
    page.get_by_label("Layer", exact=True).select_option("1")
    expect(page.locator("#block h3").first).to_have_text("france (4) in layer 1")
    expect(page.locator("#attention")).to_contain_text("bert/encoder/layer_1/attention/self/query/kernel [16, 16]")
    head = page.get_by_role("group", name="Heads of this layer").get_by_role("button", name="Head 1")
    head.click()
    expect(head).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#attention")).to_contain_text("Layer 1, head 1 of 2: numbers 8 to 15")
    page.reload()
    expect(page.locator("#block h3").first).to_have_text("france (4) in layer 1")
    expect(page.locator("#attention")).to_contain_text("Layer 1, head 1 of 2")
    assert page.get_by_label("Second sentence").input_value() == "It is [MASK]."


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


def test_the_mask_hides_padding(open_page):
    page = open_page(f"{PAIR}&padding=2")
    page.get_by_role("button", name="with the mask added", exact=True).click()
    cells = matrix(page).locator(".cells")
    cells.focus()
    cells.press("End")
    expect(matrix(page).get_by_role("status")).to_have_text(re.compile(r"to \[PAD\] \(13\): \u2212(9\d|10)\d\d\d?$"))
    cells.press("Enter")
    expect(page.locator(".steps")).to_contain_text("(padding)")
    expect(page.locator(".steps li").last).to_contain_text("0.00 %")
    page.reload()
    expect(page.get_by_role("button", name="with the mask added", exact=True)).to_have_attribute("aria-pressed", "true")


def test_the_keyboard_alone(page):
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(5):  # the tabs, then the first field
        page.keyboard.press("Tab")
    expect(page.get_by_label("Sentence, with [MASK]")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("Rome is [MASK].")
    page.keyboard.press("Enter")
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    expect(tokens).to_have_count(6)
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
    box.fill("a [MASK]")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".guesses li")).to_have_count(1)
    pages.close()
    assert len(pages.problems) == 1 and "status of 400" in pages.problems[0]


def test_the_code_behind_a_picture(page):
    link = page.get_by_role("button", name="Code: softmax").first
    link.click()
    panel = page.locator("#code-panel")
    expect(panel).to_be_visible()
    expect(panel.get_by_role("heading", name="average_values")).to_be_focused()
    expect(panel.locator(".here")).to_contain_text("tf.nn.softmax(")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(link).to_be_focused()


def test_a_phone_shows_all_parts(open_page):
    page = open_page(PAIR, width=PHONE)
    for part in ("tokens", "embeddings", "attention", "block", "words", "outputs"):
        expect(page.locator(f"#{part}")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_the_guesses_of_the_layers_end_with_the_answer(open_page):
    page = open_page("#sentence")
    rows = page.get_by_role("region", name="The best words for the state of each layer").get_by_role("row")
    best = page.locator(".best-words tbody tr").first.locator("th").inner_text()
    expect(rows.nth(1)).to_contain_text("the embeddings")
    expect(rows.last).to_contain_text(f"{best} ")


def test_a_number_out_of_range_in_the_address_is_ignored(open_page):
    page = open_page("#sentence?text=the+film&layer=99&head=-1&token=x&padding=7")
    expect(page.locator("#block h3").first).to_have_text(re.compile(r"the \(1\) in layer 0"))


@pytest.fixture(scope="module")
def classifier_address(tuned):
    """A server with a model that has no masked-LM head."""
    with server.listen(0) as listening:
        served = server.serve(Explorer(ExplorerOptions(model=tuned)), listening)
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield f"http://{server.HOST}:{listening.getsockname()[1]}"
        served.shutdown()
        thread.join()


def test_a_classifier_has_its_own_output(browser, classifier_address):
    pages = browser.pages(classifier_address)
    page = pages.open()
    expect(page.locator("#words")).to_contain_text("These weights have no masked-LM head")
    expect(page.get_by_role("table", name="Classifier").get_by_role("row")).to_have_count(2)
    expect(page.locator("#attention")).to_contain_text("Layer 0, head 0")
    pages.close()
    assert pages.problems == []

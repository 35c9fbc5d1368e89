"""`bert_tf2.exporting.load`: an exported folder as a callable in this process."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest
import text_operations
from export_cases import CLOSE, SECONDS, TEXTS
from refused import message_of

from bert_tf2.exporting import load
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint

text_operations.need()


@pytest.mark.slow
def test_load_answers_texts(exported):
    made = exported("classifier")
    for path in (made.folder, str(pathlib.Path(made.folder).parent)):
        model = load(path)
    found = made.ask("serving_text_pair", text_a=TEXTS, text_b=SECONDS)
    answers = model(list(zip(TEXTS, SECONDS, strict=True)), batch_size=2)
    assert [answer["label"] for answer in answers] == [label.decode() for label in found["label"]]
    np.testing.assert_allclose([answer["probabilities"] for answer in answers], found["probabilities"], **CLOSE)
    single, pair = made.ask("serving_text", text_a=TEXTS[:1]), model((TEXTS[1], "bad"))
    for found in (model(TEXTS[0]), model([TEXTS[0], (TEXTS[1], "bad")])[0]):
        np.testing.assert_allclose(found["probabilities"], single["probabilities"][0], **CLOSE)
    np.testing.assert_allclose(model([TEXTS[0], (TEXTS[1], "bad")])[1]["probabilities"], pair["probabilities"], **CLOSE)
    assert model([]) == []


@pytest.mark.slow
def test_load_leaves_filling_out(exported):
    features = load(exported("features").folder)(["film", "the film was good"])
    assert [len(answer["tokens"]) for answer in features] == [3, 6] and features[0]["tokens"][1] == "film"
    assert [answer["sequence_output"].shape for answer in features] == [(3, 16), (6, 16)]
    words = load(exported("masked_lm").folder)(["a [MASK]", "[MASK] is [MASK]"])
    assert [answer["positions"] for answer in words] == [[2], [1, 3]]
    assert [[len(row) for row in answer["tokens"]] for answer in words] == [[3], [3, 3]]
    answer = load(exported("squad").folder)(("where ?", "Bob is in Oslo"))
    assert "Bob is in Oslo"[answer["start"] : answer["end"]] == answer["answer"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "texts", "message"),
    [
        ("classifier", ["a", ""], "row 1 of text_a is empty"),
        ("classifier", ["a"] * 40 + [" "], "row 40 of text_a is empty"),
        ("classifier", [("a", "b", "c")], r"row 0 is \('a', 'b', 'c'\); .*classifier takes a text or a pair of texts"),
        ("classifier", ["a", 7], "row 1 is 7"),
        ("classifier", b"a film", "^row 0 is b'a film'; a model of the task classifier takes a text or a pair"),
        ("classifier", {"text_a": "a film"}, "^row 0 is {'text_a': 'a film'}; "),
        ("ner", ("a", "b"), "a model of the task ner takes a text$"),
        ("squad", "a", r"squad takes a pair \(question, context\)"),
        ("squad", ("a", ""), "row 0 of context is empty"),
    ],
)
def test_load_explains_bad_texts(exported, task, texts, message):
    with pytest.raises(UserError, match=message):
        load(exported(task).folder)(texts)


@pytest.mark.slow
def test_load_knows_an_export(exported, tmp_path):
    for path in (tmp_path, tmp_path / "gone", exported("ner").weights.parent):
        with pytest.raises(UserError, match=r"is no export \(there is no model_info.json\)"):
            load(str(path))
    shutil.copytree(exported("ner").folder, tmp_path / "export/1")
    assert load(tmp_path / "export")("Bob")["words"] == ["Bob"]
    (tmp_path / "export/2").mkdir()
    with pytest.raises(UserError, match=r"export/2: is no export"):  # and a server would take that one too
        load(tmp_path / "export")


@pytest.mark.parametrize("task", ["features", "ner"])
def test_an_export_is_not_read_as_weights(exported, tmp_path, task):
    folder = pathlib.Path(exported(task).folder)
    for path in (folder, folder / "saved_model.pb", folder / "variables"):
        message = message_of(checkpoint.open_weights, str(path))
        assert message.startswith(f"{path}: is an exported model, which is not read as weights; give the checkpoint")
    shutil.copytree(folder.parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.ckpt-7.index").write_bytes(b"damaged")  # an --export_dir that is the --output_dir
    assert "exported" not in message_of(checkpoint.open_weights, str(tmp_path))


def shorten(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model_info.json", shorten),
        ("model_info.json", lambda path: path.write_text("{}")),
        ("saved_model.pb", shorten),
        ("saved_model.pb", pathlib.Path.unlink),
        ("variables/variables.data-00000-of-00001", shorten),
        ("variables/variables.data-00000-of-00001", pathlib.Path.unlink),
    ],
)
def test_load_says_that_an_export_is_damaged(exported, tmp_path, file, damage):
    shutil.copytree(exported("ner").folder, tmp_path / "1")
    damage(tmp_path / "1" / file)
    with pytest.raises(UserError, match=r"is damaged|is the file complete\?|is needed in this JSON file") as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)

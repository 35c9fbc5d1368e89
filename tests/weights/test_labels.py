"""label_map.json: written, read again, and refused when damaged."""

from __future__ import annotations

import json

import pytest
from refused import message_of

from bert_tf2.weights.task_file import LabelMap, load_label_map, save_label_map

MAPS = {
    "xnli": LabelMap("xnli", ("contradiction", "entailment", "neutral"), False),
    "sts-b": LabelMap("sts-b", (), True),
    "ranks": LabelMap("ranks", (), True, activation="sigmoid"),
}


@pytest.mark.parametrize("name", MAPS)
def test_label_map_comes_back_as_it_was(name, tmp_path):
    label_map = MAPS[name]
    save_label_map(str(tmp_path), label_map)
    assert load_label_map(str(tmp_path)) == label_map
    assert label_map.num_labels == {"xnli": 3, "sts-b": 1, "ranks": 1}[name]


def test_label_map_in_the_file(tmp_path):
    save_label_map(str(tmp_path), LabelMap("mrpc", ("0", "1"), False))
    content = json.loads((tmp_path / "label_map.json").read_text(encoding="utf-8"))
    assert content == {"task": "mrpc", "labels": ["0", "1"], "regression": False}


@pytest.mark.parametrize(
    "text",
    [
        '{"task": "x",\n',
        '{"task": "x", "labels": "01", "regression": false}',
        '{"task": "x", "labels": [0, 1], "regression": false}',
        '{"task": "x", "labels": [["0"], "1"], "regression": false}',
        '{"task": "x", "labels": ["0"], "regression": false}',
        '{"task": "x", "labels": ["0", "1"], "regression": true}',
        '{"task": "x", "labels": ["0", "1"], "regression": false, "multi_label": 1}',
        '{"task": "x", "labels": [], "regression": true, "activation": "relu"}',
        '{"task": "x", "labels": ["0", "1"], "regression": false, "activation": "tanh"}',
    ],
)
def test_broken_label_map(text, tmp_path):
    path = tmp_path / "label_map.json"
    path.write_text(text, encoding="utf-8")
    message = message_of(load_label_map, str(tmp_path))
    assert message.startswith(str(path)) and (
        "JSON" in message or "two or more texts" in message or "activation" in message
    )

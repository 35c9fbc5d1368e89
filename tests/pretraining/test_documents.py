"""Documents: reading, and segments of them."""

from __future__ import annotations

from pretraining_text import document, sentences_of

from bert_tf2 import pretraining
from bert_tf2.pretraining.documents import Document


def test_blank_lines_end_documents_but_files_do_not(tmp_path, tokenizer):
    (tmp_path / "one").write_text("\n\na b\r\n\u3000 \nc\n\n \nd\n")
    (tmp_path / "two").write_text("e\u2028f\n\x00\ng\n\nh")
    documents = pretraining.read_documents([str(tmp_path / "one"), str(tmp_path / "two")], tokenizer)
    # U+3000 alone is a blank line; NUL is a line without tokens, which ends nothing; U+2028 ends no line.
    assert [sentences_of(doc) for doc in documents] == [["a b"], ["c"], ["d", "e f", "g"], ["h"]]


def test_a_token_is_kept_once_however_often_it_comes():
    doc = Document([["".join(["x", "yz"]), "".join(["x", "yz"])]])
    assert doc.tokens[0] is doc.tokens[1]


def test_stop_for_takes_whole_sentences_until_there_are_enough_tokens():
    doc = document("a b", "c d e", "f")
    assert [doc.stop_for(0, wanted) for wanted in (-5, 1, 2, 3, 5, 6, 99)] == [1, 1, 1, 2, 2, 3, 3]
    assert doc.stop_for(2, 1) == 3

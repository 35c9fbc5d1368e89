"""Texts that are probably not meant as they are read: the records stay, and a warning says what is wrong."""

from __future__ import annotations

import pytest
from pretraining_text import CORPUS, data_options

from bert_tf2.pretraining import sentences, sharded, shards

DOCUMENT = "a b c .\nd e f .\n"
SPACED = CORPUS.replace("\n", "\n\n")
SINGLE = r'corpus.txt: 12 of 12 documents are a single sentence: what follows is always labelled "random"; leave empty'
ONE = 'corpus.txt: is one document, from which the "random" second texts are taken too; leave empty lines between'


def warnings(folder, caplog, text, **changes):
    (folder / "corpus.txt").write_text(text)
    sharded.run(data_options(folder, "out/x", dupe_factor=1, **changes))
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (CORPUS, {}, []),
        (SPACED, {}, [SINGLE]),
        (SPACED, {"objective": "mlm"}, []),
        (DOCUMENT * 9, {}, [ONE]),
        (DOCUMENT * 9, {"objective": "mlm"}, []),
        (f"{DOCUMENT}\n" * 20, {"num_shards": 8}, []),
        (
            f"{DOCUMENT}\n" * 20,
            {"num_shards": 40},
            ["20 of 40 shards have no text and 20 are one document, from which"],
        ),
        (f"{DOCUMENT}\n" * 20, {"num_shards": 40}, ["; give --num_shards=10 or fewer"]),
        (f"{DOCUMENT}\n" * 20, {"num_shards": 40, "objective": "mlm"}, ["20 of 40 shards have no text; give --num_s"]),
        (f"\n\n{DOCUMENT}\n\n" * 20, {"num_shards": 20, "objective": "mlm"}, []),
        (DOCUMENT * 99, {"num_shards": 2}, ["1 of 2 shards have no text and 1 are one document, from which"]),
        (
            DOCUMENT * 99,
            {"num_shards": 2},
            ["; leave empty lines between documents only, or give --objective"],
        ),
    ],
)
def test_documents_without_next_sentences(tmp_path, vocab_file, in_process, caplog, text, changes, expected):
    found = warnings(tmp_path, caplog, text, **changes)
    assert len(found) == len(expected) and all(map(str.__contains__, found, expected)), found


def test_a_long_line_is_named_in_its_file(tmp_path, tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(sentences, "_LONG", 40)
    text = f"{DOCUMENT}\n" * 8 + "a b c " * 9 + f"\n{DOCUMENT}"
    told = "corpus.txt, line 25: has 54 characters, which are read as one sentence, most of which"
    found = warnings(tmp_path, caplog, text)
    assert len(found) == 1 and told in found[0]
    given = data_options(tmp_path, "out/x", num_shards=3)
    with shards.opened([given.input_file], given.output_file) as sources:
        job = shards.Job(given, tokenizer, sources, shards.cut(sources, 3))
        made = [shards.attempt(shard, job).warnings for shard in map(job.shard, range(3))]
    assert made[0] == made[2] == () and len(made[1]) == 1 and told in made[1][0]

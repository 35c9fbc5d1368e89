"""Examples of a corpus as features, and as records in TFRecord files.

`DrawnExamples` draws all examples in a pass over the lengths of the sentences, because they are shuffled before the
first is written. `batches` then puts the tokens in place, for many examples at a time.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.data import example, tfrecords
from bert_tf2.pretraining import corpus
from bert_tf2.pretraining.corpus import Corpus
from bert_tf2.pretraining.examples import SAME, Example, ExampleMaker, shuffle
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, PretrainingDataOptions
from bert_tf2.support import errors, files, outputs, progress
from bert_tf2.support.errors import and_more
from bert_tf2.weights import text_rules

_VALUES_PER_BATCH = 1 << 17  # they take a few megabytes while they are encoded
_MANY_SINGLE = 0.9  # the share of documents of a single sentence that gets a warning
FEW_DOCUMENTS = "leave empty lines between documents only, or give --objective=mlm, which has no next sentences"


# Drawing


class DrawnExamples:
    """The examples that an ExampleMaker makes, in this order, in a temporary file: many do not fit into memory.

    Attributes:
      num_tokens: the number of tokens of all examples, without [CLS] and [SEP].
      num_masked: the number of masked tokens.
    """

    def __init__(self, made: Iterable[Example], options: PretrainingDataOptions, output_file: str | None = None):
        """Draws the examples.

        `output_file`: the temporary file is in its folder, because this disk must have room anyway. Without an output
        file, or with a remote file or a device such as /dev/null, the temporary file is in the system's folder.
        """
        self.num_tokens = self.num_masked = self._count = 0
        most = 0 if options.dynamic_masking else options.max_predictions_per_seq
        # A row of the file is num_masked and an Example; the letters are the types' names in `struct` and in numpy.
        *numbers, masked, replacements = zip(("num_masked", *Example._fields), "iqiqiBii", strict=True)
        self._row = np.dtype([*numbers, (*masked, (most,)), (*replacements, (most,))])
        letters = "".join(letter for _, letter in numbers)
        pack = struct.Struct(f"={letters}{4 * most}s{4 * most}s").pack  # pads the masks with zeros
        is_beside = output_file and not (files.is_remote(output_file) or outputs.is_device(output_file))
        folder = (os.path.dirname(output_file) or ".") if is_beside else None
        targets = [output_file, folder] if is_beside else [tempfile.gettempdir()]
        with errors.writing(*targets), contextlib.ExitStack() as after_an_error:
            self._file = after_an_error.enter_context(tempfile.TemporaryFile(dir=folder))
            for drawn in made:
                *numbers, masked, replacements = drawn
                masks = (array("i", values).tobytes() for values in (masked, replacements))
                self._file.write(pack(len(masked), *numbers, *masks))
                self._count += 1
                self.num_tokens += drawn.length_a + drawn.length_b
                self.num_masked += len(masked)
            self._file.flush()
            after_an_error.pop_all()  # the file stays open

    def __len__(self) -> int:
        return self._count

    def rows(self, numbers: Sequence[int]) -> np.ndarray:
        """The examples with these numbers, which count from 0 in the order of drawing: fields of Example.

        The additional field `num_masked` is the number of valid values in `masked` and `replacements`.
        """
        file, size = self._file.fileno(), self._row.itemsize
        return np.frombuffer(b"".join([os.pread(file, size, size * number) for number in numbers]), self._row)


# Features


def batches(
    drawn: DrawnExamples, order: Sequence[int], text: Corpus, ids: Mapping[str, int], options: PretrainingDataOptions
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the features of the drawn examples in this order, a few megabytes at a time.

    Each feature of `records.PRETRAINING` is an array of integers or float32, [B, max_seq_length],
    [B, max_predictions_per_seq] or [B, 1]. With dynamic masking, there are no predictions: [B, 0].

    `ids`: the ids of [CLS] and [SEP].
    """
    size = rows_per_batch(options.max_seq_length, options.max_predictions_per_seq)
    for first in range(0, len(order), size):
        yield _features(drawn.rows(order[first : first + size]), text, ids, options)


def rows_per_batch(max_seq_length: int, max_predictions_per_seq: int) -> int:
    return max(1, _VALUES_PER_BATCH // (max_seq_length + max_predictions_per_seq))


def _features(
    rows: np.ndarray, text: Corpus, ids: Mapping[str, int], options: PretrainingDataOptions
) -> dict[str, np.ndarray]:
    """The features of `DrawnExamples.rows`, padded with zeros.

    If the corpus has the tokens a b at 7, 8 and c at 40, an example of both segments with the masked token 1 is

        position     0      1  2  3      4  5      6  7
        input_ids    [CLS]  a  m  [SEP]  c  [SEP]  0  0      m: [MASK], another token, or b itself
        segment_ids  0      0  0  0      1  1      0  0

    with the prediction (position 2, id of b). B: examples here, F: max_seq_length, P: max_predictions_per_seq.
    """
    length_a, length_b = (rows[name][:, None].astype(np.int64) for name in ("length_a", "length_b"))  # [B, 1]
    first_sep, last_sep = length_a + 1, length_a + length_b + options.num_delimiters - 1  # [B, 1], their positions
    position = np.arange(options.max_seq_length)  # [F]
    in_b, is_token = position > first_sep, position <= last_sep  # [B, F]
    # Where a position's token is in the corpus. A begins behind [CLS], and B behind the first [SEP].
    source = np.where(in_b, rows["start_b"][:, None] - first_sep - 1, rows["start_a"][:, None] - 1) + position
    input_ids = np.asarray(text.tokens).take(source, mode="clip")  # [B, F]
    input_ids[:, 0] = ids["[CLS]"]
    for sep in (first_sep, last_sep):
        np.put_along_axis(input_ids, sep, ids["[SEP]"], axis=1)
    input_ids *= is_token
    is_masked = np.arange(rows["masked"].shape[1]) < rows["num_masked"][:, None]  # [B, P]; the others are padding
    masked = rows["masked"].astype(np.int64)  # [B, P], which count from the first token of A
    masked += np.where(masked < length_a, 1, 2)  # now positions: [CLS] is before A, and [SEP] before B
    # Sorts pairs (position, replacement) as one number each; padding comes last.
    pairs = np.where(is_masked, masked << 32 | (rows["replacements"].astype(np.int64) + 1), np.iinfo(np.int64).max)
    pairs.sort(axis=1)
    masked, replacements = (pairs >> 32) * is_masked, (pairs & 0xFFFFFFFF) - 1
    labels = np.take_along_axis(input_ids, masked, axis=1) * is_masked  # before the tokens are replaced
    row, column = np.nonzero(is_masked & (replacements != SAME))
    input_ids[row, masked[row, column]] = replacements[row, column]
    return {
        "input_ids": input_ids,
        "input_mask": is_token.view(np.uint8),
        "segment_ids": (in_b & is_token).view(np.uint8),
        "masked_lm_positions": masked,
        "masked_lm_ids": labels,
        "masked_lm_weights": is_masked.astype(np.float32),
        "next_sentence_labels": rows["is_random_next"][:, None],
    }


def _of_records(features: dict[str, np.ndarray], options: PretrainingDataOptions) -> dict[str, np.ndarray]:
    """The features that records have: as in `records.PRETRAINING` or UNMASKED, or without next sentences."""
    labels = {"next_sentence_labels": features.pop("next_sentence_labels")}
    if options.dynamic_masking:
        tokens, second = (features[name].sum(axis=1, dtype=np.int64) for name in ("input_mask", "segment_ids"))
        features = {  # numpy.ma hides the padding
            "input_ids": np.ma.array(features["input_ids"], mask=features["input_mask"] == 0),
            "segment_lengths": np.ma.masked_equal(np.stack([tokens - second, second], axis=1), 0),
        }
    return features | (labels if options.objective == "mlm_nsp" else {})


# Files


def make_files(
    texts: Sequence[str | corpus.Piece],
    output_files: Sequence[str],
    tokenizer: tokenization.FullTokenizer,
    options: CreatePretrainingDataOptions,
    seed: int,
) -> tuple[Corpus, DrawnExamples]:
    """Makes the examples of texts (see `corpus.sentences`) and writes them to TFRecord files in turn."""
    vocab, rng, name = tokenizer.vocab, random.Random(seed), and_more(texts, 3)
    text = corpus.read(texts, tokenizer, options)
    made = ExampleMaker(text, vocab["[MASK]"], [*vocab.values()], options, rng).make_all()
    drawn = DrawnExamples(made, options, output_files[0])
    order = array("i", range(len(drawn)))
    shuffle(rng, order)
    unknown = np.count_nonzero(np.asarray(text.tokens) == vocab.get("[UNK]", -1))
    text_rules.check_unknown(name, unknown, len(text.tokens))
    _warn_of_documents(name, text, options)
    for first in batches(drawn, order[:1], text, vocab, options):
        ids = first["input_ids"][0, : first["input_mask"].sum()].tolist()
        log_first(tokenizer.convert_ids_to_tokens(ids), len(drawn))
    columns = (_of_records(features, options) for features in batches(drawn, order, text, vocab, options))
    write(columns, len(drawn), output_files)
    return text, drawn


def _warn_of_documents(name: str, text: Corpus, options: CreatePretrainingDataOptions) -> None:
    """Warns if documents give no next sentences; create_pretraining_data.run warns about shards before the work."""
    count = len(text.documents)
    single = sum(stop - start == 1 for start, stop in text.documents)
    if single > _MANY_SINGLE * count and count > 1:
        problem = f'{single:,} of {count:,} documents are a single sentence: the next is always labelled "random"'
    elif count == 1 and options.num_shards is None:
        problem = 'is one document, from which the "random" second texts are taken too'
    else:
        return
    if options.objective == "mlm_nsp":
        logging.warning("%s: %s; %s", name, problem, FEW_DOCUMENTS)


def log_first(tokens: Iterable[str], total: int) -> None:
    logging.info("The first of %d examples: %s", total, " ".join(map(tokenization.printable_text, tokens)))


def write(batches: Iterable[Mapping[str, np.ndarray]], total: int, output_files: Sequence[str]) -> None:
    """Writes examples to files in turn."""
    done = 0
    with tfrecords.writing(*output_files) as outs, progress.Progress("Writing", total, "examples") as shown:
        for batch in batches:
            encoded = example.encode(batch)
            for number, append in enumerate(outs):
                append(encoded[(number - done) % len(outs) :: len(outs)])
            done += len(encoded)
            shown.advance(len(encoded))
    logging.info("Wrote %d examples", total)

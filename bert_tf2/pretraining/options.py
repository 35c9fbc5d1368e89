"""The settings of the scripts that learn vocabularies, make examples for pretraining, and train on them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import (
    Options,
    WrongSetting,
    of_answers,
    of_data,
    of_evaluation,
    of_examples,
    of_model,
    of_to_do,
    of_training,
    of_vocabulary,
    options,
)
from bert_tf2.training.options import CaseOptions, EvaluationOptions, TrainingOptions, sequence_length

NUM_DELIMITERS = 3  # of a pair: [CLS], [SEP], [SEP]
OBJECTIVES = ("mlm_nsp", "mlm")
_LONGEST = 1_000_000  # limits the memory, because every example is padded to this length


@options
class CorpusOptions(Options):
    """How text is read; the defaults are the reference's behavior."""

    only_with = (("language", "input_format=text,jsonl"), ("text_field", "input_format=jsonl"))

    input_format: str = of_data(
        "lines: a sentence a line; text: a paragraph a line; in both, a blank line between documents. jsonl: a document"
        " a line, a JSON object. text and jsonl need the extra `sentences`.",
        "lines", choices=("lines", "text", "jsonl"),
    )  # fmt: skip
    language: str = of_data("Language of text and jsonl, an ISO 639 code such as de or zh, to find sentences.", "en")
    text_field: str = of_data("The field of jsonl that has the text.", "text")

    def check(self) -> None:
        super().check()
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z]+)*", self.language):  # would silently be split like English
            raise WrongSetting(f"--language={self.language}: an ISO 639 code is needed, such as en, de, ja, uk or zh")


@options
class BuildVocabOptions(CorpusOptions):
    """Learns a WordPiece vocabulary from plain text, for pretraining on a language or a subject of one's own.

    Example:
      python build_vocab.py --input_file='corpus/*.txt' --vocab_file=vocab.txt --vocab_size=8000

    Give the same --do_lower_case to every later command that uses the vocabulary, and write the number of entries into
    the "vocab_size" of bert_config.json.
    """

    input_file: str = of_data(
        "Text files, also compressed by gzip, bzip2 or xz: names and globs, separated by commas.", reads=True
    )
    vocab_file: str = of_data("Vocabulary to write, one entry per line.", writes_file=True)
    vocab_size: int = of_vocabulary("Maximum number of entries.", 30522, low=1)
    do_lower_case: bool = of_vocabulary(
        "Whether to lower-case and strip accents; must match the model's setting.", True
    )
    num_unused: int = of_vocabulary("Number of [unusedN] entries to reserve.", 99, low=0, high=1_000_000)
    min_count: int = of_vocabulary("Minimum number of occurrences of a piece.", 2, low=1)


@options
class PretrainingDataOptions(CorpusOptions):
    """How text is read and made into examples; the defaults are the reference's behavior."""

    not_both = (("dynamic_masking", "do_whole_word_mask"),)
    only_with = (("word_boundaries", "do_whole_word_mask"), ("whole_word_draw", "do_whole_word_mask"))

    max_seq_length: int = of_examples(
        "Tokens per example, including padding.", 128, low=NUM_DELIMITERS + 2, high=_LONGEST
    )
    max_predictions_per_seq: int = of_examples(
        "Most masked tokens per example; give run_pretraining.py the same.", 20, low=1, high=_LONGEST
    )
    do_whole_word_mask: bool = of_examples("Predict all pieces of a word or no piece.", False)
    whole_word_draw: str = of_examples(
        "With --do_whole_word_mask: draw [MASK], another token or the same token for each piece, or once for a word.",
        "piece", choices=("piece", "word"),
    )  # fmt: skip
    word_boundaries: str = of_examples(
        "With --do_whole_word_mask, a word is a piece with its ## pieces (pieces), or the text between two spaces.",
        "pieces", choices=("pieces", "spaces"),
    )  # fmt: skip
    objective: str = of_examples(
        "mlm_nsp for masked words and next sentences; mlm for masked words alone, in consecutive sentences.",
        "mlm_nsp", choices=OBJECTIVES,
    )  # fmt: skip
    dupe_factor: int = of_examples("Number of passes over the text, each with different pairs and masks.", 10, low=1)
    masked_lm_prob: float = of_examples("Fraction of the tokens to predict.", 0.15, low=0.0, high=1.0)
    short_seq_prob: float = of_examples(
        "Fraction of the documents that are cut into shorter examples.", 0.1, low=0.0, high=1.0
    )
    random_seed: int = of_examples("The same seed gives the same examples.", 12345)
    dynamic_masking: bool = of_examples(
        "Write examples without masks; run_pretraining.py draws new masks in every pass.", False
    )

    @property
    def num_delimiters(self) -> int:
        """The number of [CLS] and [SEP] in an example."""
        return NUM_DELIMITERS if self.objective == "mlm_nsp" else 2


@options
class CreatePretrainingDataOptions(PretrainingDataOptions, CaseOptions):
    """Makes masked-LM and next-sentence examples for pretraining BERT out of plain text.

    The text has one sentence a line and a blank line between documents; --input_format has other formats. Use
    --num_shards for a large corpus.

    Example:
      python create_pretraining_data.py --input_file=sample_text.txt --output_file=/tmp/tf_examples.tfrecord \\
          --vocab_file=$BERT_BASE_DIR/vocab.txt --max_seq_length=128 --max_predictions_per_seq=20
    """

    not_both = (("num_workers", "dask_scheduler"),)
    needs = (("num_workers", "num_shards"), ("dask_scheduler", "num_shards"))

    input_file: str = of_data(
        "Text files to read, also compressed by gzip, bzip2 or xz: names and patterns (*, ?), separated by commas.",
        reads=True,
    )
    output_file: str = of_data(
        "TFRecord files to write, examples in turn: names, separated by commas. A name that ends in .gz is compressed."
    )
    vocab_file: str = of_model("Vocabulary of the model to train, one entry per line.", reads=True)
    num_shards: int | None = of_data(
        "Cut the text into this many shards, written to OUTPUT-00000-of-00010 and so on; for example, a shard for every"
        " 16 MB.", None, low=1, high=1_000_000,
    )  # fmt: skip
    num_workers: int | None = of_data("Processes that make shards; the number of cores if not given.", None, low=1)
    dask_scheduler: str | None = of_data(
        "Make the shards on the cluster of this scheduler (extra `dask`): tcp://HOST:8786.", None
    )

    def check(self) -> None:
        super().check()
        if self.num_shards is not None and "," in self.output_file:
            raise WrongSetting(f"--output_file={self.output_file}: shards need one name, to which numbers are added")
        if self.dask_scheduler and not re.fullmatch(r"(tcp|tls|ucx|wss?)://[^/]+:\d+", self.dask_scheduler):
            raise WrongSetting(f"--dask_scheduler={self.dask_scheduler}: an address is needed, tcp://HOST:8786")


@options
class PretrainingOptions(EvaluationOptions, CaseOptions, TrainingOptions):
    """Pretrains BERT on the records that create_pretraining_data.py wrote, evaluates it, or both.

    Example:
      python run_pretraining.py --input_file=/tmp/tf_examples.tfrecord --output_dir=/tmp/pretraining_output \\
          --do_train --do_eval --bert_config_file=$BERT_BASE_DIR/bert_config.json --train_batch_size=32 \\
          --max_seq_length=128 --max_predictions_per_seq=20 --num_train_steps=20 --num_warmup_steps=10
    """

    any_of = ("do_train", "do_eval", "do_export")
    needs = (("do_export", "vocab_file"), ("eval_steps", "eval_input_file"))

    input_file: str = of_data(
        "TFRecord files of pretraining examples: names and globs, separated by commas.", reads=True
    )
    objective: str = of_model(
        "mlm_nsp for masked words and next sentences; mlm for masked words alone, also of records with both.",
        "mlm_nsp", choices=OBJECTIVES,
    )  # fmt: skip
    max_seq_length: int = sequence_length(
        "Tokens per example; must equal the records' value (for records without masks, at least this value).",
        low=5,
        decides="texts are cut elsewhere from here on",
    )
    max_predictions_per_seq: int = of_model(
        "Masked words per example; must equal the records' value, if they have masks.",
        20, low=1, decides="other words are masked from here on",
    )  # fmt: skip
    masked_lm_prob: float = of_model(
        "Fraction of the tokens to predict, for records of create_pretraining_data.py --dynamic_masking.",
        0.15, decides="other words are masked from here on", low=0.0, high=1.0,
    )  # fmt: skip
    vocab_file: str | None = of_model(
        "The vocabulary that the records were made with, to keep beside the checkpoints; needed for records of"
        " --dynamic_masking. Defaults to the file beside the weights.",
        None, reads=True,
    )  # fmt: skip
    do_eval: bool = of_to_do("Evaluate on eval_input_file, or else on the training records.", False)
    eval_input_file: str | None = of_evaluation(
        "Records to evaluate on: names and globs, separated by commas. A pattern of input_file leaves them out.",
        None, reads=True,
    )  # fmt: skip
    eval_steps: int = of_evaluation(
        "Evaluate every N steps and at the end; keep the weights with the lowest loss in output_dir/best; 0: never.",
        0, low=0,
    )  # fmt: skip
    num_train_steps: int = of_training("Total number of training steps.", 100000, low=1)
    num_warmup_steps: int = of_training("Number of steps in which the learning rate rises from 0.", 10000, low=0)
    stop_at_step: int | None = of_training(
        "End this call at an earlier step; a later call continues, with the same schedule of the learning rate.",
        None, low=1,
    )  # fmt: skip
    max_eval_steps: int = of_evaluation(
        "Number of batches to evaluate; without eval_input_file, the records repeat.", 100, low=1
    )

    def check_inputs(self) -> None:
        super().check_inputs()
        self.config.check_sequence_length(self.max_seq_length)
        found = files.match_files(self.input_file)
        if self.eval_input_file:
            held_out = files.match_files(self.eval_input_file)
            if self.do_train:
                without_held_out(found, self.input_file, held_out)


def without_held_out(found: Sequence[str], input_file: str, held_out: Sequence[str]) -> list[str]:
    """The files to train on: `found`, the files of the value of --input_file, without the files of --eval_input_file.

    Raises UserError if a file that is held out is named in --input_file, not only matched by a pattern, or if no file
    is left.
    """
    others, named = {*map(outputs.identity, held_out)}, {part.strip() for part in input_file.split(",")}
    twice = {path for path in found if outputs.identity(path) in others}
    if both := sorted(named.intersection(twice)):
        raise UserError(f"{both[0]}: is named in --input_file and in --eval_input_file; leave the file out of one flag")
    if twice.issuperset(found):
        raise UserError(f"--input_file={input_file}: every file is in --eval_input_file; no file is left to train")
    return [path for path in found if path not in twice]


@options
class InspectRecordsOptions(Options):
    """Checks every record of TFRecord files, and shows their contents: lengths, padding, masks, labels, examples.

    Reads the records of create_pretraining_data.py, run_classifier.py, run_squad.py and run_ner.py, and the reference's
    records. The first invalid record is an error that names the file, the record and the reason.

    Example:
      python inspect_records.py --input_file=/tmp/tf_examples.tfrecord --vocab_file=$BERT_BASE_DIR/vocab.txt --show=3
    """

    input_file: str = of_data(
        "TFRecord files to inspect, all of one kind: names and globs, separated by commas.", reads=True
    )
    vocab_file: str | None = of_model(
        "The vocabulary that the records were made with; without it, ids are shown instead of words.", None, reads=True
    )
    show: int = of_answers("Number of examples to show as text, from the first.", 0, low=0)

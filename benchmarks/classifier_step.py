"""Times the training step of a classifier on the rows of MRPC, without padding or with it.

    python benchmarks/classifier_step.py --bert_config_file FILE --vocab_file FILE --data_dir MRPC_FOLDER

Real work is the matrix products of the tokens, without the products of padding. The rate that counts as 100 % is
measured in the same run, on the product that widens the states in a block.
"""

from __future__ import annotations

import functools

import steps
import workload

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TRAINING, options, setting
from bert_tf2.training.options import PrecisionOptions, VocabularyOptions


@options
class BenchmarkOptions(PrecisionOptions, VocabularyOptions):
    """Times the training step of a classifier on the rows of MRPC, without padding or with it."""

    data_dir: str = setting("Folder with MRPC's train.tsv.", group=DATA)
    bert_config_file: str = setting("Configuration of the model.", group=MODEL, reads=True)
    max_seq_length: int = setting("Tokens per row; longer rows are cut.", 64, group=MODEL, low=5)
    batch_size: int = setting("Rows per step.", 32, group=TRAINING, low=1)
    unpad: str = setting("As in run_classifier.py.", "groups", group=TRAINING, choices=("none", "groups"))
    steps: int = setting("Steps to time.", 10, group=TRAINING, low=1)


def read_batches(options: BenchmarkOptions) -> list[dict]:
    """The first rows of the training table in random order, in batches of equal size, as run_classifier.py has them."""
    import numpy as np

    from bert_tf2 import tokenization
    from bert_tf2.finetuning import classification

    processor = classification.get_processor("mrpc")
    examples = processor.get_train_examples(options.data_dir)
    count = options.steps + workload.WARM_UP
    chosen = np.random.default_rng(1).permutation(len(examples))[: count * options.batch_size]
    tokenizer = tokenization.FullTokenizer(options.vocab_file, do_lower_case=options.do_lower_case is not False)
    labels = processor.get_labels()
    features = classification.convert_examples_to_features(
        [examples[n] for n in chosen], labels, options.max_seq_length, tokenizer
    )
    rows = [classification.as_record(feature) for feature in features]
    columns = {name: np.array([row[name] for row in rows], np.int32) for name in rows[0]}
    columns |= {name: columns[name].reshape(-1) for name in ("label_ids", "is_real_example")}
    starts = range(0, len(rows), options.batch_size)
    return [{name: values[n : n + options.batch_size] for name, values in columns.items()} for n in starts]


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig

    config = BertConfig.from_json_file(options.bert_config_file)
    batches = read_batches(options)
    seconds, measured = steps.measure(
        config,
        functools.partial(heads.ClassifierModel, num_labels=2),
        batches,
        options,
        True,
        precision=options.precision,
    )
    print(workload.result(options.batch_size, seconds, 1, **measured))


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

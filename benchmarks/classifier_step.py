"""Times the training step of a classifier on the rows of MRPC, without padding or with it.

    python benchmarks/classifier_step.py --bert_config_file FILE --vocab_file FILE --data_dir MRPC_FOLDER

Real work is the matrix products of the tokens, without those of padding; the rate that counts as 100 % is measured in
the same run, on the product that widens the states in a block.
"""

from __future__ import annotations

import statistics

import steps
import workload

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, TRAINING, options, setting
from bert_tf2.training.options import UNPAD, PrecisionOptions, VocabularyOptions


@options
class BenchmarkOptions(PrecisionOptions, VocabularyOptions):
    """Times the training step of a classifier on the rows of MRPC, without padding or with it."""

    data_dir: str = setting("Folder with MRPC's train.tsv.", group=DATA)
    bert_config_file: str = setting("Configuration of the model.", group=MODEL, reads=True)
    max_seq_length: int = setting("Tokens per row; longer rows are cut.", 64, group=MODEL, low=5)
    batch_size: int = setting("Rows per step.", 32, group=TRAINING, low=1)
    unpad: str = setting("As in run_classifier.py; none computes the padding.", "groups", group=TRAINING, choices=UNPAD)
    steps: int = setting("Steps to time.", 10, group=TRAINING, low=1)


def read_batches(options: BenchmarkOptions) -> list[dict]:
    """The first rows of the training table in random order, in batches of equal size, as run_classifier.py has them."""
    import numpy as np
    from absl import logging

    from bert_tf2 import tokenization
    from bert_tf2.finetuning import classification

    processor = classification.get_processor("mrpc")
    examples = processor.get_train_examples(options.data_dir)
    count = options.steps + workload.WARM_UP
    chosen = np.random.default_rng(1).permutation(len(examples))[: count * options.batch_size]
    tokenizer = tokenization.FullTokenizer(options.vocab_file, do_lower_case=options.do_lower_case is not False)
    labels = processor.get_labels()
    features = classification.convert_examples_to_features(
        [examples[n] for n in chosen], labels, options.max_seq_length, tokenizer, logging.DEBUG
    )
    rows = [classification.as_record(feature) for feature in features]
    batches = []
    for first in range(0, len(rows), options.batch_size):
        part = rows[first : first + options.batch_size]
        batch = {name: np.array([row[name] for row in part], np.int32) for name in part[0]}
        batch["label_ids"] = batch["label_ids"].reshape(-1)
        batch["is_real_example"] = batch["is_real_example"].reshape(-1)
        batches.append(batch)
    return batches


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.training.precision import PRECISIONS

    config = BertConfig.from_json_file(options.bert_config_file)
    batches = read_batches(options)
    precision = PRECISIONS[options.precision].exported
    tokens = options.batch_size * options.max_seq_length
    before = steps.product_rate(config, tokens, precision)
    seconds = steps.time_training(
        lambda: heads.ClassifierModel(config, num_labels=2, dtype=PRECISIONS[options.precision].policy),
        batches,
        options.unpad,
        precision=options.precision,
    )
    rate = max(before, steps.product_rate(config, tokens, precision))
    lengths = [batch["input_mask"].sum(axis=1) for batch in batches[workload.WARM_UP :]]
    flops = statistics.mean(steps.step_flops(config, rows) for rows in lengths) / statistics.mean(seconds)
    measured = {"gflops": flops / 1e9, "machine_gflops": rate / 1e9, "share": flops / rate}
    print(workload.result(options.batch_size, seconds, 1, **measured))


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)

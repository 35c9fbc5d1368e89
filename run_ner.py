"""Fine-tunes BERT to tag words (named entities and the like) in CoNLL columns, evaluates it and predicts.

Example:
  python run_ner.py --train_file=train.txt --eval_file=dev.txt --do_train --do_eval --do_lower_case=False \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --output_dir=/tmp/ner_output
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.support import flags

flags.define_model()
flags.define_vocabulary()
flags.define_output_dir("*.tf_record", "eval_metrics.json", "label_map.json", "predictions.txt")
with flags.group("Data"):
    absl_flags.DEFINE_string(
        "train_file", None, "CoNLL columns to train on: a word a line, a blank line after a sentence."
    )
    absl_flags.DEFINE_string("eval_file", None, "The same, to evaluate on.")
    absl_flags.DEFINE_string("predict_file", None, "Words to tag; a tag column is not needed and not read.")
    absl_flags.DEFINE_integer("word_column", 1, "The column of the word, from 1; negative: from the end.")
    absl_flags.DEFINE_integer("tag_column", -1, "The column of the tag, from 1; negative: from the end.")
    absl_flags.DEFINE_integer(
        "doc_stride", 0, "Tokens from the start of a window to the start of the next; 0: half a window.", lower_bound=0
    )
    absl_flags.DEFINE_bool("document_context", False, "Fill each window with the sentences around, as the paper does.")
with flags.group("Model"):
    absl_flags.DEFINE_integer("max_seq_length", 128, "Tokens per window; longer sentences are split.", lower_bound=5)
flags.define_fine_tuning()
flags.define_training()
with flags.group("What to do"):
    absl_flags.DEFINE_bool("do_train", False, "Train on train_file.")
    absl_flags.DEFINE_bool("do_eval", False, "Evaluate on eval_file.")
    absl_flags.DEFINE_bool("do_predict", False, "Tag the words of predict_file.")
with flags.group("Evaluation and prediction"):
    absl_flags.DEFINE_integer("eval_batch_size", 8, "Windows per evaluation batch.", lower_bound=1)
    absl_flags.DEFINE_integer("predict_batch_size", 8, "Windows per prediction batch.", lower_bound=1)
flags.define_devices()
flags.define_log()
flags.mark_required("bert_config_file", "vocab_file", "output_dir")
for part in ("train", "eval", "predict"):
    flags.mark_needed(f"do_{part}", f"{part}_file")
flags.mark_needed("eval_steps", "eval_file")
flags.define_export()
flags.mark_any_of("do_train", "do_eval", "do_predict", "do_export")


def main(argv) -> None:
    del argv
    flags.load_tensorflow()
    from bert_tf2.finetuning.ner import run as finetune_ner

    finetune_ner.run(flags.fill(finetune_ner.NerOptions))


if __name__ == "__main__":
    flags.run(main)

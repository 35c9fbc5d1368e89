"""Fine-tunes BERT to tag words (named entities and the like) in CoNLL columns, evaluates it and predicts.

    python run_ner.py --help

shows every flag. The class NerOptions in bert_tf2/finetuning/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("run_ner")

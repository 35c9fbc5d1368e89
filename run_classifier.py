"""Fine-tunes BERT on a classification task (GLUE, XNLI or one's own table), evaluates it and predicts.

    python run_classifier.py --help

shows every flag. The class ClassifierOptions in bert_tf2/finetuning/options.py defines the flags.
"""

from bert_tf2 import commands

__getattr__ = commands.names("run_classifier")  # the reference's classes and functions

if __name__ == "__main__":
    commands.run("run_classifier")

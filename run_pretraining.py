"""Pretrains BERT on the records that create_pretraining_data.py wrote, evaluates it, or both.

    python run_pretraining.py --help

shows every flag. The class PretrainingOptions in bert_tf2/pretraining/options.py defines the flags.
"""

from bert_tf2 import commands

__getattr__ = commands.names("run_pretraining")  # the reference's classes and functions

if __name__ == "__main__":
    commands.run("run_pretraining")

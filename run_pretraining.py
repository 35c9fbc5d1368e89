"""Pretrains BERT on the records that create_pretraining_data.py wrote, evaluates it, or both.

    python run_pretraining.py --help

shows every flag. They are stated in bert_tf2/pretraining/options.py, as the class PretrainingOptions.
"""

from bert_tf2 import commands

__getattr__ = commands.names("run_pretraining")  # the reference's classes and functions

if __name__ == "__main__":
    commands.run("run_pretraining")

"""Converts BERT's weights between TensorFlow 1, Hugging Face and Keras, or lists them.

    python convert_checkpoint.py --help

shows every flag. The class ConversionOptions in bert_tf2/weights/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("convert_checkpoint")

"""BERT (Devlin et al., 2018) on TensorFlow 2 and Keras 3, a drop-in successor of google-research/bert.

Importing this package imports nothing else: TensorFlow takes seconds to load, and a script must be able to answer a
wrong flag at once. Import the module that you need, for example `from bert_tf2 import modeling`.
"""

__version__ = "0.1.0"

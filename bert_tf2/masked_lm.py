"""The masked-LM head, from the state of a masked token to a score for every word.

The letters in the shape comments are those of heads.py. `losses.get_masked_lm_output` has the loss.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from bert_tf2 import shapes
from bert_tf2.config import BertConfig
from bert_tf2.layers import Dense, LayerNorm, class_scores


class MaskedLMHead(keras.layers.Layer):
    """Predicts words from hidden states (paper, section 3.1, task 1).

    A small network, `transform`, maps the state to the space of the word embeddings, so that the encoder's last layer
    need not specialize in words. The score of a word is the dot product with its embedding: the output layer is the
    transposed embedding table, so training on a word as an output updates the same numbers that represent it as an
    input. Only the bias, one number per word that learns its frequency, belongs to the output alone.
    """

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        width = config.hidden_size
        self.transform = Dense(
            width, width, config.initializer_range, config.hidden_act, name="transform", dtype=self.dtype_policy
        )
        self.layer_norm = LayerNorm(width, config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)
        self.output_bias = self.add_weight(
            shape=[config.vocab_size], initializer="zeros", autocast=False, name="output_bias"
        )
        self.built = True

    def contract(self) -> shapes.Contract:
        """A contract with the D and V of this head."""
        return shapes.Contract(D=self.transform.kernel.shape[0], V=self.output_bias.shape[0])

    def call(self, states: tf.Tensor, output_weights: tf.Tensor) -> tf.Tensor:
        """Scores every word.

        Args:
          states: [M, D].
          output_weights: the table of word embeddings, float32 [V, D].

        Returns:
          float32 logits [M, V].

        Raises:
          shapes.ShapeError: an argument has another shape.
        """
        contract = self.contract()
        contract.check("MD", states=states)
        contract.check("VD", output_weights=output_weights)
        states = self.layer_norm(self.transform(states))
        return class_scores(states, output_weights) + tf.cast(self.output_bias, tf.float32)  # [M, D] x [D, V]

"""BERT (Devlin et al., 2018) on TensorFlow 2 and Keras 3, a drop-in successor of google-research/bert.

    import bert_tf2

    bert = bert_tf2.load("uncased_L-12_H-768_A-12")      # weights of any kind: see bert_tf2.load
    bert.embed(["a text", "another"])                    # numpy, float32 [2, 768]
    bert.fill_mask("Paris is the [MASK] of France.").filled
    films = bert_tf2.classifier("uncased_L-12_H-768_A-12", labels=["bad", "good"])    # a keras.Model
    films.fit(texts, labels, epochs=3, validation_split=0.1)

Importing this package imports no large library, because TensorFlow takes seconds to load, and a script must be able to
report a wrong flag at once. The names in `__all__` and the modules of the package are imported when they are first
used. `keras.models.load_model` imports them, too; only this package must be imported before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bert_tf2.support import lazy

if TYPE_CHECKING:
    from bert_tf2.api.bert import load as load
    from bert_tf2.api.embedders import EmbeddingModel as EmbeddingModel
    from bert_tf2.api.embedders import embedder as embedder
    from bert_tf2.api.masked_models import MaskedTextModel as MaskedTextModel
    from bert_tf2.api.masked_models import masked_lm as masked_lm
    from bert_tf2.api.text_models import TextModel as TextModel
    from bert_tf2.api.text_models import classifier as classifier
    from bert_tf2.api.token_models import SpanTextModel as SpanTextModel
    from bert_tf2.api.token_models import TagModel as TagModel
    from bert_tf2.api.token_models import answerer as answerer
    from bert_tf2.api.token_models import tagger as tagger
    from bert_tf2.config import BertConfig as BertConfig
    from bert_tf2.exporting.keras_export import export as export
    from bert_tf2.exporting.tokenize_layer import Tokenize as Tokenize
    from bert_tf2.modeling import BertModel as BertModel
    from bert_tf2.tokenization import FullTokenizer as FullTokenizer
    from bert_tf2.training.keras_optimizer import AdamWeightDecay as AdamWeightDecay
    from bert_tf2.training.keras_optimizer import WarmupAndDecay as WarmupAndDecay

__version__ = "0.1.0"

_WITHOUT_TENSORFLOW = {"config": "BertConfig", "tokenization": "FullTokenizer"}
_NAMES = {
    "api.bert": "load",
    "api.embedders": "EmbeddingModel embedder",
    "api.masked_models": "MaskedTextModel MaskedWordsLoss masked_lm",
    "api.text_models": "TextModel classifier",
    "api.token_models": "SpanTextModel TagModel answerer tagger",
    "exporting.keras_export": "export",
    "exporting.tokenize_layer": "Tokenize",
    "modeling": "BertModel",
    "training.keras_optimizer": "AdamWeightDecay WarmupAndDecay",
}
_HEADS = {"heads": "ClassifierModel MaskedLMModel PretrainingModel SpanModel TaggingModel VectorModel"}
_IN_KERAS = {
    name: f"{__name__}.{module}"
    for module, names in (_NAMES | _HEADS).items()
    for name in names.split()
    if name[0].isupper()
}
# Module of google-research/bert -> the module that has its names: `from bert_tf2.run_classifier import InputExample`.
_OF_REFERENCE = {
    "create_pretraining_data": "pretraining",
    "extract_features": "inference.extract_features",
    "run_classifier": "finetuning.classification",
    "run_pretraining": "heads",
    "run_squad": "finetuning.squad",
}
lazy.offer_to_keras(__name__, _IN_KERAS)
sys.meta_path.append(lazy.Aliases(__name__, _OF_REFERENCE))
__getattr__, __dir__ = lazy.names(__name__, _WITHOUT_TENSORFLOW, of_tensorflow=_NAMES)
__all__ = __dir__()

"""BERT (Devlin et al., 2018) on TensorFlow 2 and Keras 3, a drop-in successor of google-research/bert.

    import bert_tf2

    bert = bert_tf2.load("uncased_L-12_H-768_A-12")      # weights of any kind: see bert_tf2.load
    bert.embed(["a text", "another"])                    # numpy, float32 [2, 768]
    bert.fill_mask("Paris is the [MASK] of France.").filled
    films = bert_tf2.classifier("uncased_L-12_H-768_A-12", labels=["bad", "good"])    # a keras.Model
    films.fit(texts, labels, epochs=3, validation_split=0.1)

Importing this package imports nothing that is large: TensorFlow takes seconds to load, and a script must be able to
answer a wrong flag at once. The names in `__all__` and the modules of the package are imported when they are first
used, also by `keras.models.load_model`, for which the import of this package is enough.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from bert_tf2.support import keras_registry

if TYPE_CHECKING:
    from bert_tf2.commands.loading import load
    from bert_tf2.commands.span_models import SpanTextModel, answerer
    from bert_tf2.commands.tag_models import TagModel, tagger
    from bert_tf2.commands.text_models import TextModel, classifier
    from bert_tf2.config import BertConfig
    from bert_tf2.exporting.keras_export import export
    from bert_tf2.exporting.tokenize_layer import Tokenize
    from bert_tf2.modeling import BertModel
    from bert_tf2.tokenization import FullTokenizer
    from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay

__version__ = "0.1.0"
__all__ = [
    "AdamWeightDecay",
    "BertConfig",
    "BertModel",
    "FullTokenizer",
    "SpanTextModel",
    "TagModel",
    "TextModel",
    "Tokenize",
    "WarmupAndDecay",
    "answerer",
    "classifier",
    "export",
    "load",
    "tagger",
]

_MODULES = {
    "AdamWeightDecay": "training.keras_optimizer",
    "BertConfig": "config",
    "BertModel": "modeling",
    "FullTokenizer": "tokenization",
    "SpanTextModel": "commands.span_models",
    "TagModel": "commands.tag_models",
    "TextModel": "commands.text_models",
    "Tokenize": "exporting.tokenize_layer",
    "WarmupAndDecay": "training.keras_optimizer",
    "answerer": "commands.span_models",
    "classifier": "commands.text_models",
    "export": "exporting.keras_export",
    "load": "commands.loading",
    "tagger": "commands.tag_models",
}
_HEADS = ("ClassifierModel", "MaskedLMModel", "PretrainingModel", "SpanModel", "TaggingModel")
_IN_KERAS = {
    name: _MODULES[name]
    for name in ("AdamWeightDecay", "BertModel", "SpanTextModel", "TagModel", "TextModel", "Tokenize", "WarmupAndDecay")
}
_IN_KERAS |= dict.fromkeys(_HEADS, "heads")
keras_registry.offer(__name__, {name: f"{__name__}.{module}" for name, module in _IN_KERAS.items()})


def __getattr__(name: str) -> Any:
    """Imports a public name, or a module of the package, when it is first used (PEP 562)."""
    if name in _MODULES and name not in ("BertConfig", "FullTokenizer"):
        from bert_tf2.support.quiet import load_tensorflow

        load_tensorflow()  # without its messages about devices
    module = f"{__name__}.{_MODULES.get(name, name)}"
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # something that the module needs
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(imported, name) if name in _MODULES else imported


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__") or f"{__name__}.{name}" in sys.modules)
    return sorted({*own, *__all__})

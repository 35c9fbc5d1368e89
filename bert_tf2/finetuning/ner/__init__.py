"""Token classification, which finds named entities or parts of speech; the reference has no such task."""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "examples": "OUTSIDE TAG NerSentence is_plain read_conll tags_of write_predictions score score_plain",
        "features": "IGNORED_LABEL_ID InputFeatures convert_sentences_to_features as_record assemble_tags tag_ids",
    },
)

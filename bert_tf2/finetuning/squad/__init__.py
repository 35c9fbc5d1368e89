"""Question answering on SQuAD; as bert_tf2.run_squad, has the names of google-research/bert."""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "examples": "SquadExample split_words read_squad_examples examples_of shuffled_for_training"
        " check_answers evaluate_predictions",
        "features": "InputFeatures FeatureWriter check_lengths convert_examples_to_features as_record"
        " _improve_answer_span _check_is_max_context",
        "answers": "NO_SPAN_ODDS RawResult Answers compute_predictions get_final_text write_answers write_predictions"
        " _get_best_indexes _compute_softmax",
    },
)

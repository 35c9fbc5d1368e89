"""The settings of pretraining examples: the flags of create_pretraining_data.py that decide which examples are made."""

from __future__ import annotations

import dataclasses

from bert_tf2.support.errors import UserError

NUM_DELIMITERS = 3  # [CLS], [SEP], [SEP]

_LONGEST = 1_000_000  # every example is padded to this length, in memory

# Smallest and largest value of each option; None means no limit. The shortest sequence has one token in each segment.
LIMITS: dict[str, tuple[float | None, float | None]] = {
    "max_seq_length": (NUM_DELIMITERS + 2, _LONGEST),
    "max_predictions_per_seq": (1, _LONGEST),
    "dupe_factor": (1, None),
    "masked_lm_prob": (0.0, 1.0),
    "short_seq_prob": (0.0, 1.0),
}


@dataclasses.dataclass(frozen=True)
class PretrainingDataOptions:
    """Which examples are created; names and defaults are those of the flags of the reference.

    Attributes:
      max_seq_length: number of tokens of an example with [CLS] and both [SEP]; shorter examples are padded.
      max_predictions_per_seq: largest number of masked positions of an example; the lists are padded to this length.
      dupe_factor: how many times each document is used, with other pairs and masks each time.
      masked_lm_prob: fraction of the tokens that are predicted.
      short_seq_prob: probability that a document gives examples shorter than `max_seq_length`.
      do_whole_word_mask: whether all pieces of a word are masked together.
      random_seed: seed of the random numbers.

    Raises:
      UserError: a value is outside LIMITS.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    do_whole_word_mask: bool = False
    random_seed: int = 12345

    def __post_init__(self):
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if low is not None and not value >= low:  # "not >=" because NaN would pass "<"
                raise UserError(f"--{name}={value}: must be at least {low:.7g}")
            if high is not None and not value <= high:
                raise UserError(f"--{name}={value}: must be at most {high:.7g}")

    def num_to_predict(self, num_tokens: int) -> int:
        """The number of predictions for `num_tokens` tokens (delimiters included); at least 1."""
        return min(self.max_predictions_per_seq, max(1, round(num_tokens * self.masked_lm_prob)))

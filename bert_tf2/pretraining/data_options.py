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
    """What examples are made; names and defaults are those of the reference's flags.

    Attributes:
      max_seq_length: tokens of an example, with [CLS] and both [SEP]; shorter ones are padded.
      max_predictions_per_seq: masked positions of an example at most; fewer are padded.
      dupe_factor: how often each document is gone through.
      masked_lm_prob: share of the tokens to be predicted.
      short_seq_prob: how often a document is cut into shorter examples than would fit (see `_target_length`).
      do_whole_word_mask: mask all pieces of a word or none.
      random_seed: where the random numbers start.

    Raises:
      UserError: a value is outside of LIMITS.
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
            if low is not None and not value >= low:  # "not >=" rather than "<", which lets nan pass
                raise UserError(f"--{name}={value}: must be at least {low:.7g}")
            if high is not None and not value <= high:
                raise UserError(f"--{name}={value}: must be at most {high:.7g}")

    def num_to_predict(self, num_tokens: int) -> int:
        """How many of `num_tokens` tokens, delimiters counted, are to be predicted; at least one."""
        return min(self.max_predictions_per_seq, max(1, round(num_tokens * self.masked_lm_prob)))

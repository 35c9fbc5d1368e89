"""The kinds of models that position_embedding_type and tie_word_embeddings make."""

from __future__ import annotations

KINDS = {
    "as in the reference": {},
    "untied": {"tie_word_embeddings": False},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "from the sinusoid": {"position_embedding_type": "learned_from_sinusoidal"},
    "without positions": {"position_embedding_type": "none"},
    "untied and sinusoidal": {"tie_word_embeddings": False, "position_embedding_type": "sinusoidal"},
}
POSITIONS, OUTPUT_TABLE = "bert/embeddings/position_embeddings", "cls/predictions/output_weights"

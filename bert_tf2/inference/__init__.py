"""Answers of trained models to texts (vectors, words for blanks, labels, tags, spans), and the scripts for them."""

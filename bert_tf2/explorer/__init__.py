"""The explorer: a local page that shows a model step by step (explore.py, docs/explorer.md)."""

"""The Python interface: `load`, and the Keras models that take texts."""

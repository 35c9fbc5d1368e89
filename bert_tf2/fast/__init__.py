"""What makes BERT fast and changes no answer: other ways to compute what `modeling` defines.

`accelerate(model, plan)` puts it around a model. Each module has one idea:

    encoder        the way through the model that uses the others
    unpadding      nothing is computed for padding
    kernels        activation, normalization and attention with gradients that keep and move less memory
    compiled       chains of element-wise operations as one loop of XLA
    recompute      activations that are computed again instead of kept
    shared_graph   one graph of operations for all blocks
"""

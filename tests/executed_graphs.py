"""What TensorFlow executes after it has optimized a graph."""

from collections.abc import Callable

from tensorflow.python.eager import context


def executed(call: Callable[[], object]) -> list:
    """The nodes of all functions that `call` makes TensorFlow optimize, which it does at their first call."""
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # those of the functions before
        call()
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    return [node for graph in graphs for node in graph.post_optimization_graph.node]

"""The graph of Python objects in a TensorFlow 2 checkpoint, which leads to its variables.

The proto TrackableObjectGraph (TensorFlow's trackable_object_graph.proto) lists objects, the attributes that connect
them, and the keys of their variables.
"""

from __future__ import annotations

from collections.abc import Container

from bert_tf2.weights.bundle_index import parse

# Attributes that lead to an optimizer, and attributes that only an optimizer has.
_TO_OPTIMIZER = {"optimizer", "_optimizer"}
_OF_OPTIMIZER = {"iter", "iterations", "_iterations"}


class ObjectGraph:
    """The objects of a checkpoint.

    Attributes:
      full_names: key -> the name that the variable was created with, except for optimizer state and counters.
      global_step, do_lower_case: the keys of these variables, or "".
    """

    def __init__(self, graph: bytes, stored: Container[str]):
        """Parses a TrackableObjectGraph; `stored` are the keys of the checkpoint.

        Raises:
          DamagedTable, ValueError: `graph` is invalid.
        """
        nodes = parse("Graph", graph).nodes
        self._children = [{child.local_name: child.node_id for child in node.children} for node in nodes]
        if any(not 0 <= number < len(nodes) for children in self._children for number in children.values()):
            raise ValueError("it speaks of objects that are not in it")
        slots = {slot.slot_variable_node_id for node in nodes for slot in node.slot_variables}
        self._variables = {}
        for number, node in enumerate(nodes):
            for attribute in node.attributes:
                key = attribute.checkpoint_key.removeprefix("module/")  # like `bundle`
                if attribute.name == "VARIABLE_VALUE" and key in stored and number not in slots:
                    self._variables[number] = (key, attribute.full_name.removesuffix(":0"))
        of_root = self._children[0] if self._children else {}
        self.global_step, self.do_lower_case, counter = (
            self._variables.get(of_root.get(name, -1), ("", ""))[0]
            for name in ("global_step", "do_lower_case", "save_counter")
        )
        everything = self.variables_below(0) if self._children else {}
        aside = {self.global_step, self.do_lower_case, counter}
        self.full_names = {key: name for key, name in everything.items() if key not in aside}

    def variables_below(self, node: int) -> dict[str, str]:
        """Returns key -> full name of the variables that are reachable from an object, except through an optimizer."""
        waiting, seen = [node], {node}
        while waiting:
            for attribute, child in self._children[waiting.pop()].items():
                optimizer = attribute in _TO_OPTIMIZER or _OF_OPTIMIZER & self._children[child].keys()
                if not optimizer and child not in seen:
                    seen.add(child)
                    waiting.append(child)
        return dict(self._variables[number] for number in sorted(seen & self._variables.keys()))

    def held_as(self, attribute: str) -> set[int]:
        """Returns the objects that are the value of this attribute of another object."""
        return {children[attribute] for children in self._children if attribute in children}

    def holders(self, *attributes: str) -> list[int]:
        """Returns the objects that have all of these attributes."""
        return [number for number, children in enumerate(self._children) if {*attributes} <= children.keys()]

    def key_at(self, node: int, path: str) -> str | None:
        """Returns the key of the variable at a path of attributes, or None."""
        for attribute in path.split("/"):
            if attribute not in self._children[node]:
                return None
            node = self._children[node][attribute]
        return self._variables[node][0] if node in self._variables else None

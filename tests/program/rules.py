"""A row of the table as a step has it: its attribute given, nothing else of a program."""

from iceform.program import Node


class Rule:
    """One row, asked by itself."""

    def __init__(self, op, attr=None):
        self.node = Node(op, (), True, None, attr)
        self.row = self.node.operation

    def call(self, *args):
        """Its value."""
        return self.row.value(None, self.node, *args)

    def accurate(self, *args):
        """Its value as the tape has it."""
        return self.row.accurate(None, self.node, *args)

    def rounding(self, out, *args):
        """What that is off by."""
        return self.row.rounding(self.row.at(self.node, *args), out, *args)

    def moved(self, out, args, radii):
        """How far it moves."""
        return self.row.moved(None, self.row.at(self.node, *args), out, args, radii)

    def tangent(self, *args):
        """What pull-backs are of."""
        return self.row.tangent(None, self.row.at(self.node, *args), *args)

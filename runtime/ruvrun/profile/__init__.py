"""Measure what a model's parts cost on this machine: `ruvrun profile`.

The same code measures on a workstation, where the compiler starts it on a bundle in its scratch folder, and on a node
that has nothing but a bundle or a probe. It runs the executors that will serve, and writes a cost table.

``sheet`` says which nodes of a stage belong to which unit; ``conditions`` how it is run; ``decoder`` and ``graph``
measure the units of one stage; ``overhead`` what a step costs beside them, in a ring of real processes; ``link`` the
way to another machine; ``table`` puts all that together.
"""

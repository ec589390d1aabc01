"""OpenVINO's executors: three forms of a stage, each for one kind of device.

* ``cpu``: paged attention in blocks, driven by small arrays; all sequences of a step in one call
* ``gpu``: keys and values in variables, a lane for each sequence, holes taken out by a mask
* ``npu``: static graphs without state, keys and values as ports, sequences side by side through a mask

Which of them a back end's name means, and where a stage runs, stands in ``forms`` and can be asked without OpenVINO.
``devices`` says what is here, ``intermediate`` reads what a bundle holds, ``compiled`` keeps what was compiled of it.
Stages of graphs that are no decoders (``graph``) are the same on all of them but for their shapes.
"""

"""Plain Python that is evaluated where a program calls what C, or torch, does.

A function here is the model of the callables that its decorator names.  Nothing else has to know of it.
"""

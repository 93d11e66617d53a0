"""What values and callables are to the evaluator: a variable for each kind, and what calling it does.

:mod:`.table` says which model a callable has; each folder beside it is a theme."""

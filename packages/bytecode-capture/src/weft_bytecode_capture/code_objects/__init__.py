"""Code objects as lists of instructions: taken apart, analysed, changed and put together again."""

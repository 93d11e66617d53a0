"""Programs whose loops, branches and writes to views other compilers unroll, break on or copy for."""

"""Mutants: the product with one decisive line changed. The simulation or a test must find each of them.

    scripts/simulate --mutants                          all of them, each until a play fails
    scripts/simulate --mutants xack-before-commit       one
    scripts/simulate --story seed/17+faults --mutants xack-before-commit

A mutant is a value (mutant.py), and all of them are one table (table.txt). No file is changed: each mutant is planted
in a process of its own, which gives the functions of the module other code (plays.py).
"""

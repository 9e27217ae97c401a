"""Mutants: the product with one decisive line changed. The simulation must find each of them.

    scripts/simulate --mutants                              all of them, each until a plan fails
    scripts/simulate --mutants --only xack-before-commit    one
    scripts/simulate --story 17 --mutant xack-before-commit

A mutant is a value (mutant.py), and the table has one module for each part of the product (table.py). No file is
changed: each mutant runs in a process of its own, whose import of the module replaces the text (hunt.py).
"""

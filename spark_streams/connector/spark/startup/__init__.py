"""A folder for the PYTHONPATH of Spark's Python processes: each of them runs its sitecustomize.py when it starts."""

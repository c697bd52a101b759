"""The wall to verl: the only package that imports verl or ray.

verl 0.9.1 is the trainer on GPUs and on a CPU (pinned, because its data plane is in motion upstream). What this package adds
goes in through verl's own hooks; `plugin.py` lists them.
"""

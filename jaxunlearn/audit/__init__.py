"""The auditor: sign vectors and attack outputs in, lower bounds on epsilon out. NumPy and SciPy only, no model, no JAX.

``design``: sign vectors, guesses, overlaps. ``null``: p-values and ranks. ``bounds``: the bounds; ``paper``: those of the
audit paper; ``sequential``: the one that holds at every number of runs. ``preregistration``: what is fixed beforehand;
``headline``: all bounds of one method. ``validity``: conditions that are refused when broken. ``least_favourable``: the
mechanism to test a bound against. ``certificates``: what theory proves.
"""

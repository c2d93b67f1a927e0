"""Tools for runs of one's own: solve rates, a plan of the group size, the diagnosis of a log.

Here: what reads the logs of finished runs or the solve rates of a data set, and says what follows.
Not here: training itself, and the papers' experiments.
"""

"""Language models by name, what is sampled from them, and how often they are right.

Here: loading, sampling, greedy evaluation, float64 copies, the small transformer that is pre-trained on the spot.
Not here: anything that changes a policy by reinforcement learning (`shared.training`).
"""

"""Text to reward: reading what a completion answers, and comparing it with the right answer.

Here: reward functions as TRL calls them, the readers of mathematical and puzzle answers, the processes they run in.
Not here: prompts and data sets (`shared.tasks`), and what a reward does to the policy (`shared.theory`).
"""

"""Text to reward: what a completion answers, and whether that is the gold answer.

Here: reading an answer out of a completion, comparing it with a gold answer, the reward functions that TRL calls, and
the processes in which a comparison can be stopped. One rule for all: a reward is paid only where the text allows one
reading; an unusual wording of a right answer may be refused. Not here: prompts, data sets and the drawing of problems
(`shared.tasks`), and what a reward does to the policy (`shared.theory`).
"""

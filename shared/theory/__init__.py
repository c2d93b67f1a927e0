"""Mathematics of GRPO on rewards, solve rates and token ids: what the papers define and prove.

Here: advantages, closed forms of the expected update, process sets, formulas of token weights; pure functions on numpy
arrays and torch tensors. Not here: TRL, language models, files, random experiments.
"""

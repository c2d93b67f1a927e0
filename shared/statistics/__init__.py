"""Estimates with their intervals, and the tests that decide a comparison.

Here: functions of arrays of numbers, one value per seed, group or problem; numpy and scipy only.
Not here: what is compared and which criterion applies (`shared.harness`), and any model or reward.
"""

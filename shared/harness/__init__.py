"""From profiles to a report: jobs, runs, records, measurements, verdicts, figures, tables.

Here: everything that is the same for every paper and every experiment, whatever an experiment does inside.
Not here: any paper, any model, any training; an experiment is a function from settings and a seed to rows.
"""

"""The commands beside the probes: python -m probes replay | selfcheck | readme | resources.

replay.py     a report's verdicts again, from its samples; no GPU needed
summary.py    for each probe the record's verdict, ours on the same lever, and what beats it
selfcheck.py  the harness against itself: A/A runs and the noise floor
readme.py     the README's tables again, from the committed reports
resources.py  compile every kernel for the recorded targets and write what it costs
"""

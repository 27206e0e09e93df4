"""From samples to a decision, pure.

blocks.py tells how sure a gain is, bars.py decides by bars.toml, record.py holds what others measured
(verdicts.toml). windows.py is the statistics of reports before schema 3.
"""

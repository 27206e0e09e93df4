"""From samples to a decision, pure: intervals.py (how sure is a ratio), bars.py (GO, NO-GO or INCONCLUSIVE
against bars.toml), record.py (what others measured, verdicts.toml)."""

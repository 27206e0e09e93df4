"""Rows on disk and on paper.

rows.py (one row), provenance.py (a report's head), store.py (its file), schema1.py (older files), tables.py
(text), pictures.py (plots).
"""

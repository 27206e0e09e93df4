"""One engine for every probe: run.py owns the sequence, and a probe's rooms hand it their pieces (probe.py).

A measured run goes through compiling, plan, arms, bench and judge; one without a GPU through predict.
"""

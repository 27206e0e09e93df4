"""The commands beside the probes (see probes.__main__), and the summary of a run of all of them."""

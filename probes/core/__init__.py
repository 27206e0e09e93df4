"""Words that everybody may import: types, digests, the build cache, settings. No NumPy, no CUDA."""

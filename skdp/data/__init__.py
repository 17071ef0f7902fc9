"""Private rows in blocks: dense, sparse, files, Dask; with targets or groups."""

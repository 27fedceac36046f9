"""Many GPUs: a sweep as tasks of a Dask cluster, one for each op and device model."""

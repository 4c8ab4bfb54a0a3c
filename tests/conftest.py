"""Tests run strictly: no silent promotion of types or ranks, warnings are errors, two CPU devices."""

import covey  # noqa: I001  (first: it tells XLA to be quiet)
import jax

from covey.run.cache import use_cache

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
use_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
assert covey.__version__

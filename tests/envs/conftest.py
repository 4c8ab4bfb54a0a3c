import jax
import pytest


@pytest.fixture(autouse=True)
def strict():
    """No implicit dtype or rank promotion, as covey promises."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield

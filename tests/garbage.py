# What is left to Python's cyclic collector, by the fixture `garbage`.
import gc


def ours(garbage: list[object]) -> list[str]:
    """The names of the broker's types among *garbage*."""
    gc.collect()
    return sorted({type(found).__qualname__ for found in garbage if type(found).__module__.startswith("broker.")})

"""Amounts, as people read them."""


def show_bytes(count: float) -> str:
    """A size in powers of 1024: ``59.7 MiB``."""
    for unit, width in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= width:
            return f"{count / width:.1f} {unit}"
    return f"{count:.0f} B"

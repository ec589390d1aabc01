"""No property test depends on how fast or how cold the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("ruv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ruv")

"""One Hypothesis profile for all property tests: no deadlines, because a busy machine is not a bug."""

from hypothesis import HealthCheck, settings

settings.register_profile("slackwater", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("slackwater")

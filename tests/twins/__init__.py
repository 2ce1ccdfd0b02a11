"""Reference twins: the simplest thing that gives the right answers, which tests hold the real structures against."""

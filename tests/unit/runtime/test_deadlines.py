from slackwater.runtime.rpc.deadlines import DEAD_ENTRIES_MIN, TIMEOUT_S_MAX, Deadlines


class Timer:
    def __init__(self, at, callback):
        self.at, self.callback, self.cancelled = at, callback, False

    def cancel(self):
        self.cancelled = True


class World:
    """A clock and a loop that stand still until told otherwise."""

    def __init__(self):
        self.now_s = 0.0
        self.timers = []
        self.living = set()
        self.expired = []
        self.deadlines = Deadlines(self, self, living=self.living, expired=self.expire)

    def monotonic_ns(self):
        return int(self.now_s * 1e9)

    def call_later(self, delay, callback):
        timer = Timer(self.now_s + delay, callback)
        self.timers.append(timer)
        return timer

    def expire(self, key):
        self.expired.append(key)
        self.living.discard(key)

    def add(self, key, timeout):
        self.deadlines.add(key, self.deadlines.after(timeout))
        self.living.add(key)

    def advance(self, seconds):
        self.now_s += seconds
        for timer in [t for t in self.timers if not t.cancelled and t.at <= self.now_s]:
            self.timers.remove(timer)
            timer.callback()

    @property
    def armed(self):
        return [t for t in self.timers if not t.cancelled]


def test_deadlines_expire_in_order_with_one_timer():
    w = World()
    for key, timeout in [(1, 3.0), (2, 1.0), (3, 2.0)]:
        w.add(key, timeout)
        assert len(w.armed) == 1
    w.advance(0.9)
    assert w.expired == []
    w.advance(0.2)
    assert w.expired == [2]
    w.advance(5)
    assert w.expired == [2, 3, 1]
    assert w.armed == []


def test_a_finished_call_does_not_expire():
    w = World()
    w.add(1, 1.0)
    w.add(2, 2.0)
    w.living.discard(1)
    w.advance(1.5)
    w.advance(1)
    assert w.expired == [2]


def test_entries_of_finished_calls_are_swept():
    w = World()
    for key in range(10 * DEAD_ENTRIES_MIN):
        w.add(key, 60.0)
        if key:
            w.living.discard(key)
    assert len(w.deadlines) <= DEAD_ENTRIES_MIN + 1
    w.advance(61)
    assert w.expired == [0]


def test_close_watches_nothing():
    w = World()
    w.add(1, 1.0)
    w.deadlines.close()
    w.advance(2)
    assert w.expired == []
    assert w.armed == []


def test_an_endless_timeout_is_bounded():
    w = World()
    assert w.deadlines.after(float("inf")) == int(TIMEOUT_S_MAX * 1e9)


def test_the_timer_never_fires_early_for_ever():
    w = World()
    w.add(1, 1e-9)
    w.advance(0.001)
    assert w.expired == [1]

"""Requests come, advance and are called off in any order, on any device: everything comes back, once."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loops import CountingRunner, assert_empty, loop_over, storage_of

from kvarena.assembly.config import PrefixConfig
from kvarena.backends.simulated import SimulatedDevice
from kvarena.plugins.prefix_tree import PrefixTree
from kvarena.plugins.serving.port import Request
from kvarena.plugins.serving.report import ABORTED, DONE, FAILED, REFUSED
from kvarena.storage.checks import check_idle
from kvarena.terms.lifetimes import Full, Lifetime, State, Window

KINDS: tuple[tuple[Lifetime, ...], ...] = (
    (State(), Window(8), Full()),
    (State(), Window(6), Window(12), Full()),
    (Window(8), Full()),
    (State(), Full()),
    (Full(),),
    (Window(6), Window(12)),
    (State(), Window(8)),
)
SIMULATED = {"name": "simulated", "timing": "late", "seed": 3, "grain_bytes": 1}
HEADS = [tuple(range(first, first + 40)) for first in (1, 1, 500)]
"""What prompts begin with: two of three are alike."""


class AnyOrder(RuleBasedStateMachine):
    """One loop over a tiny arena, under whatever a server may do to it."""

    backend: Any = "host"

    @initialize(
        kinds=st.sampled_from(KINDS),
        memory=st.integers(250, 700),
        in_flight=st.integers(0, 3),
        share=st.booleans(),
        strategy=st.sampled_from(["no_buffer", "extra_buffer", "extra_buffer_lazy"]),
        outputs=st.booleans(),
        fraction=st.sampled_from([0.1, 0.5, 1.0]),
        chunk=st.integers(1, 13),
        eviction=st.sampled_from(["lru", "worth"]),
    )
    def build(
        self,
        kinds: tuple[Lifetime, ...],
        memory: int,
        in_flight: int,
        share: bool,
        strategy: str,
        outputs: bool,
        fraction: float,
        chunk: int,
        eviction: str,
    ) -> None:
        """An arena of a few requests."""
        prefix = PrefixConfig(
            share=share, strategy=strategy, checkpoint_tokens=8, cache_outputs=outputs, eviction=eviction
        )
        self.storage = storage_of(
            memory, lifetimes=kinds, in_flight=in_flight, backend=self.backend, prefix=prefix, running=3, checks=2
        )
        self.runner = CountingRunner(storage=self.storage)
        self.loop = loop_over(
            self.storage, self.runner, chunk_tokens=chunk, step_tokens=max(16, chunk), output_fraction=fraction
        )
        self.ids: list[int] = []
        self.over: set[int] = set()

    @rule(
        head=st.sampled_from(HEADS),
        prompt=st.integers(1, 34),
        output=st.integers(1, 20),
        priority=st.integers(0, 2),
        later=st.sampled_from([0.0, 0.0, 2.5]),
        ends=st.integers(1, 30),
        namespace=st.sampled_from([None, None, "other"]),
    )
    def submit(
        self,
        head: tuple[int, ...],
        prompt: int,
        output: int,
        priority: int,
        later: float,
        ends: int,
        namespace: str | None,
    ) -> None:
        """A request that may end early, now or later."""
        number = len(self.ids)
        request = Request(
            number, self.loop.now + later, prompt, output, prompt=head[:prompt], priority=priority, namespace=namespace
        )
        self.runner.ends_after[number] = ends
        self.loop.submit(request)
        self.ids.append(number)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        """The loop goes on."""
        for _ in range(times):
            self.loop.step()

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """One is called off, wherever it is."""
        over = {served.request.id for served in self.loop.report().served}
        live = [number for number in self.ids if number not in over]
        if live:
            self.loop.abort(data.draw(st.sampled_from(live)))

    @invariant()
    def adds_up(self) -> None:
        """Every sum of the storage and of the tree."""
        if hasattr(self, "loop"):
            self.storage.verify()
            if isinstance(self.loop.cache, PrefixTree):
                self.loop.cache.verify()

    def teardown(self) -> None:
        """Everybody is served to the end; then nothing is held."""
        if not hasattr(self, "loop"):
            return
        report = self.loop.run()
        assert [served.request.id for served in report.served] == self.ids
        for served in report.served:
            assert served.fate in (DONE, REFUSED, ABORTED, FAILED)
            if served.fate == DONE:
                wanted = min(served.request.output_tokens, self.runner.ends_after[served.request.id])
                assert served.generated == wanted or (served.clipped and served.generated <= wanted)
                sampled = [
                    step.stop - served.request.prompt_tokens
                    for attempt in served.attempts
                    for step in attempt.forwards
                    if step.samples
                ]
                assert sampled == list(range(served.generated))
        check_idle(self.storage)
        assert_empty(self.loop)
        self.check_device()
        self.storage.release()

    def check_device(self) -> None:
        """The host holds no bytes: there is nothing to look at."""


class AnyOrderOnBytes(AnyOrder):
    """The same where every byte is watched, and work lands as late as it may."""

    backend = SIMULATED

    def check_device(self) -> None:
        """No access ran beside another that it had to wait for."""
        assert isinstance(self.storage.device, SimulatedDevice)
        self.storage.device.check()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=25, stateful_step_count=20)
TestAnyOrderOnBytes = AnyOrderOnBytes.TestCase
TestAnyOrderOnBytes.settings = settings(max_examples=12, stateful_step_count=12)
TestAnyOrder = pytest.mark.req("ADM-1")(TestAnyOrder)

"""Runs histories against a cluster: several at once, batch by batch."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import zip_longest
from random import Random
from typing import Final

from tests.model.cluster import Cluster
from tests.model.histories import (
    PLANS,
    Act,
    Batch,
    CreateOrder,
    CreateUser,
    Deliver,
    History,
    Kill,
    Step,
)
from tests.model.model import Model, Payment
from tests.model.operators import Operators, order_request
from tests.model.people_operators import CLERKS, PeopleOperators
from tests.model.senders import TELL, THIEF, Telling, names_target
from tests.support.service import Reply

SENDERS: Final = 16
STATUSES: Final = {"": 200, "conflicting": 200, "forged": 401, "malformed": 400}


@dataclass
class Run:
    """A history, how far it got, and what the model knows of it."""

    history: History
    cluster: Cluster
    model: Model = field(default_factory=lambda: Model(PLANS, "monthly"))
    wallets: dict[str, str] = field(default_factory=dict)
    """The ids of wallets, by their names here."""
    acknowledged: set[str] = field(default_factory=set)
    conflicts: int = 0
    wrong: list[str] = field(default_factory=list)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self.operators = Operators(self.cluster, self.model, self.wallets)
        self.people_operators = PeopleOperators(self.cluster, self.model)
        for payment in self.history.payments.values():
            is_named = payment.order is None and payment.email is None
            self.model.payments[payment.name] = replace(
                payment, facts=set(), returned={}, order=None, email=None, is_named=is_named
            )
        self._lock = threading.Lock()

    def tasks(self, step: Step, is_quiet: bool) -> list[Callable[[], None]]:
        match step:
            case Deliver():
                if step.twist == "conflicting" and step.event_id not in self.acknowledged:
                    return []
                return [lambda: self._deliver(step)] * step.copies
            case CreateUser(email):
                return [lambda: self._create_user(email)]
            case CreateOrder(reference):
                return [lambda: self._create_order(reference)]
            case Act():
                who = self.people_operators if step.verb in CLERKS else self.operators
                return [lambda: self.wrong.extend(who.act(step, is_quiet))]
            case Kill():
                return []

    def learn(self, batch: Batch) -> None:
        """After a batch: all of its deliveries were acknowledged."""
        for step in batch:
            if isinstance(step, Deliver) and not step.twist:
                self._learn_fact(step)

    def _learn_fact(self, step: Deliver) -> None:
        self.acknowledged.add(step.event_id)
        payment, told = self.model.payments[step.payment], self.history.payments[step.payment]
        payment.facts.add(step.fact)
        if not payment.is_named and names_target(step.source, step.fact):
            payment.order, payment.email, payment.is_named = told.order, told.email, True

    def sent(self, payment: Payment) -> int:
        """How many events of a payment were acknowledged."""
        return sum(
            one.startswith(f"evt-{payment.name}-{payment.source}") for one in self.acknowledged
        )

    def _deliver(self, step: Deliver) -> None:
        payment = self.history.payments[step.payment]
        if step.source == "kr" and not step.twist:
            self.cluster.portone.learn(payment, step.fact)
        secret = {"secret": THIEF} if step.twist == "forged" else {}
        told = Telling(
            payment, step.fact, step.event_id, is_malformed=step.twist == "malformed", **secret
        )
        reply = self.cluster.deliver(step.source, lambda: TELL[step.source](told))
        self._check_answer(step, reply)

    def _check_answer(self, step: Deliver, reply: Reply) -> None:
        is_right = reply.http == STATUSES[step.twist]
        if step.twist == "conflicting" and is_right and step.source not in ("cn", "creem"):
            is_right = reply.json["status"] == "conflict"
        if step.event_id in self.acknowledged and not step.twist and is_right:
            is_right = step.source in ("cn", "creem") or reply.json["status"] == "duplicate"
        with self._lock:
            self.conflicts += step.twist == "conflicting"
            if not is_right:
                self.wrong.append(f"{step} was answered {reply.http} {reply.body.decode()[:300]}")

    def _create_user(self, email: str) -> None:
        reply = self.cluster.api("POST", "/users", {"email": email})
        assert reply.http in (200, 201), reply
        with self._lock:
            self.model.people.add(email, reply.json["id"])

    def _create_order(self, reference: str) -> None:
        order = self.history.orders[reference]
        with self._lock:
            if order.wallet is not None and order.wallet not in self.wallets:
                said = {"owner": order.wallet, "currency": order.currency}
                self.wallets[order.wallet] = self.cluster.api("POST", "/wallets", said).json["id"]
        reply = self.cluster.api("POST", "/orders", order_request(order, self.wallets))
        if order.is_free and order.kind == "subscription" and reply.http in (404, 409):
            return  # FUL-11: its user does not exist, or has canceled
        assert reply.http in (200, 201), reply
        with self._lock:
            self.model.orders.setdefault(reference, replace(order))


def run_all(cluster: Cluster, histories: Sequence[History], dice: Random) -> list[Run]:
    """Run them side by side: the first batches of all at once, then the second ones, and so on."""
    runs = [Run(one, cluster) for one in histories]
    with ThreadPoolExecutor(SENDERS) as pool:
        for batches in zip_longest(*(one.batches for one in histories), fillvalue=()):
            _run_batch(cluster, list(zip(runs, batches, strict=True)), pool, dice)
    cluster.settle()
    return runs


def _run_batch(
    cluster: Cluster, batches: Sequence[tuple[Run, Batch]], pool: ThreadPoolExecutor, dice: Random
) -> None:
    """What operators do alone is done first, while nothing else happens to their history.

    While a process is killed, operators do nothing: who gets no answer does not know what was done.
    """
    steps = [(run, step, _is_alone(batch)) for run, batch in batches for step in batch]
    has_kill = any(isinstance(step, Kill) for _, step, _ in steps)
    alone = [(run, step) for run, step, is_alone in steps if is_alone]
    others = [(run, step) for run, step, is_alone in steps if not is_alone]
    dice.shuffle(others)
    later = [(run, step) for run, step in others if has_kill and isinstance(step, Act)]
    if alone:
        cluster.settle()
        _do([task for run, step in alone for task in run.tasks(step, is_quiet=True)], pool)
    now = [one for one in others if one not in later]
    tasks = [task for run, step in now for task in run.tasks(step, is_quiet=False)]
    if has_kill:
        tasks.append(lambda: cluster.kill_and_restart(dice.randrange(8)))
    _do(tasks, pool)
    _do([task for run, step in later for task in run.tasks(step, is_quiet=False)], pool)
    for run, batch in batches:
        run.learn(batch)


def _do(tasks: Sequence[Callable[[], None]], pool: ThreadPoolExecutor) -> None:
    for begun in [pool.submit(task) for task in tasks]:
        begun.result()


def _is_alone(batch: Batch) -> bool:
    return len(batch) == 1 and isinstance(batch[0], Act)

"""What operators do with subscriptions and users, and what the model learns from the answers."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.model.cluster import Cluster
from tests.model.histories import Act
from tests.model.model import Model
from tests.support.service import Reply

WHY: Final = "the customer called"
_APPLIED: Final = """
SELECT i.external_id FROM payment_ids AS i JOIN payments AS p ON p.id = i.payment_id
 WHERE p.applied_at IS NOT NULL AND i.external_id = ANY($1)
"""
_LEFT: Final = """
SELECT 1 FROM user_emails WHERE user_id = $1::text::uuid
 UNION ALL SELECT 1 FROM payments WHERE user_id = $1::text::uuid AND email IS NOT NULL
 UNION ALL SELECT 1 FROM orders WHERE user_id = $1::text::uuid AND email IS NOT NULL
"""


class PeopleOperators:
    """Operators who deal with people; one of them at a time in each history."""

    def __init__(self, cluster: Cluster, model: Model) -> None:
        self._cluster = cluster
        self._model = model
        self._people = model.people

    def act(self, act: Act, is_quiet: bool) -> list[str]:
        """Do it; returns what was answered wrongly."""
        return CLERKS[act.verb](self, act, is_quiet)

    def end(self, act: Act, is_quiet: bool) -> list[str]:
        """FUL-9: cancel a subscription, now or at the end of its period."""
        user_id = self._user(act)
        shown = user_id and self.subscription(user_id)
        if user_id is None or not shown:
            return []
        reply = self._post(f"/subscriptions/{shown['id']}/cancel", {"at": act.how, "reason": WHY})
        is_later = self._people.canceled.get(user_id) == "now" and act.how == "period_end"
        if reply.http == 200:
            self._people.canceled[user_id] = act.how
            self._people.in_time.update(self._applied())
        allowed = (200, 409) if is_later or not is_quiet else (200,)
        return _unless(reply.http in allowed, act, reply)

    def resume(self, act: Act, is_quiet: bool) -> list[str]:
        """FUL-9: also what was not canceled."""
        user_id = self._user(act)
        shown = user_id and self.subscription(user_id)
        if user_id is None or not shown:
            return []
        reply = self._post(f"/subscriptions/{shown['id']}/resume", None)
        if reply.http == 200:
            self._people.canceled.pop(user_id, None)
        return _unless(reply.http in ((200,) if is_quiet else (200, 409)), act, reply)

    def merge(self, act: Act, is_quiet: bool) -> list[str]:
        """USR-2: the ids of both still lead to the one who remains."""
        people = self._people
        gone, into = people.newest(act.to or ""), people.newest(act.how)
        if (
            gone is None
            or into is None
            or people.erased & {gone, into, *map(people.remaining, (gone, into))}
        ):
            return []
        ends = [people.remaining(gone), people.remaining(into)]
        before = [self.subscription(one) for one in ends]
        reply = self._post(f"/users/{gone}/merge", {"into": into, "reason": WHY})
        is_one = ends[0] == ends[1]
        if reply.http == 200 and not is_one:
            people.merged[ends[0]] = ends[1]
            wrong = self._joined(ends, before, act, reply)
        else:
            wrong = []
        allowed = (200, 409) if is_one or not is_quiet else (200,)
        return wrong + _unless(reply.http in allowed, act, reply)

    def _joined(self, ends: list[str], before: list[Any], act: Act, reply: Reply) -> list[str]:
        """A subscription that runs is not canceled by a merge."""
        hows = [self._people.canceled.pop(one, None) for one in ends]
        shown = self.subscription(ends[1])
        is_canceled = bool(shown) and shown["canceled_at"] is not None
        if is_canceled:
            known = {one for one in hows if one}
            self._people.canceled[ends[1]] = known.pop() if len(known) == 1 else "either"
            self._people.in_time.update(self._applied())
        runs = [
            one and not how and one["status"] == "ACTIVE"
            for one, how in zip(before, hows, strict=True)
        ]
        is_right = not is_canceled if any(runs) or not any(hows) else True
        is_right &= is_canceled or not all(hows)
        return _unless(is_right, act, reply, f"canceled: {is_canceled}, before: {hows}")

    def erase(self, act: Act, is_quiet: bool) -> list[str]:
        """USR-4: not while events are unfinished."""
        user_id = self._user(act)
        if user_id is None:
            return []
        unfinished = self._unfinished()
        reply = self._post(f"/users/{user_id}/erase", {"reason": WHY})
        if reply.http == 200:
            self._people.erased.add(user_id)
        wrong = _unless(
            reply.http in ((200, 409) if unfinished or not is_quiet else (200,)), act, reply
        )
        if reply.http == 409:
            wrong += _unless(reply.json["code"] == "EVENTS_UNFINISHED", act, reply)
        elif is_quiet and reply.http == 200:
            wrong += _unless(
                not self._cluster.rows(_LEFT, user_id), act, reply, "an address is left"
            )
        return wrong

    def subscription(self, user_id: str) -> Any:
        found = self._cluster.api("GET", "/subscriptions", user_id=user_id).json["items"]
        return found[0] if found else None

    def _user(self, act: Act) -> str | None:
        """The user with the address, or who last had it."""
        newest = self._people.newest(act.to or "")
        return newest and self._people.remaining(newest)

    def _names(self) -> list[str]:
        return [name for one in self._model.payments for name in (one, f"pi_{one}", f"ch_{one}")]

    def _applied(self) -> list[str]:
        """The payments that were applied by now, by their names here."""
        found = {one["external_id"] for one in self._cluster.rows(_APPLIED, self._names())}
        return [one for one in self._model.payments if found & {one, f"pi_{one}", f"ch_{one}"}]

    def _unfinished(self) -> bool:
        """Whether events of the history wait for something."""
        waiting = self._cluster.items("/events", status="FAILED_RETRYABLE")
        return any(one["payment"] in self._names() for one in waiting)

    def _post(self, path: str, body: Any) -> Reply:
        return self._cluster.api("POST", path, body)


CLERKS: Final[Mapping[str, Callable[[PeopleOperators, Act, bool], list[str]]]] = {
    "end": PeopleOperators.end,
    "resume": PeopleOperators.resume,
    "merge": PeopleOperators.merge,
    "erase": PeopleOperators.erase,
}


def _unless(is_right: bool, act: Act, reply: Reply, why: str = "") -> list[str]:
    told = reply.body.decode()[:300]
    return [] if is_right else [f"{act} was answered {reply.http} {told} {why}"]

"""The guard of the door, met from several addresses of this machine."""

import http.client
import json
import re
from pathlib import Path
from typing import Any, Final

from tests.support.host_programs import StartHost, start_host
from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, SECRET, Reply, Service, paid, signature
from tests.support.tools import Row, is_problem, paidonce, rows, until

__all__ = ["start_host"]

CONFIG: Final = f"""{BASIC}
[limits]
unverified = "6/minute"
verified_senders = "12/minute"
api_keys = "3/minute"
[security]
ban_threshold = 4
ban_half_life_minutes = 1000
[sources.kr]
provider = "portone"
version = "v1"
api_url = "http://127.0.0.1:9"
api_key = "key"
api_secret = "secret"
[sources.named]
provider = "tilda"
secrets = ["{SECRET}"]
allow = ["localhost", "127.9.0.0/16", "nowhere.invalid"]
"""
UNSIGNED_ID: Final = f"""
[sources.ids]
provider = "generic"
secrets = ["{SECRET}"]
[sources.ids.signature]
header = "X-Signature"
algorithm = "hmac-sha256"
encoding = "hex"
signed = "{{body}}"
[sources.ids.fields]
event_id = "header:x-id"
type = "/type"
payment_id = "/payment"
amount = "/amount"
currency = "/currency"
[sources.ids.types]
paid = "paid"
"""
UNBANNED: Final = CONFIG.replace("ban_threshold = 4", "ban_threshold = 0")


def forge(service: Service, source: str = "payments") -> Reply:
    return service.deliver(paid("forged"), secret="a guess", source=source)


def codes(service: Service, number: int) -> list[int]:
    return [forge(service).http for _ in range(number)]


def bans(service: Service) -> list[Any]:
    found: list[Any] = service.api("GET", "/bans").json["items"]
    return found


def banned(service: Service) -> list[str]:
    return [one["address"] for one in bans(service)]


def test_strangers_are_limited_and_told_when_they_may_come_again(
    start_service: StartService,
) -> None:
    """SEC-1 REC-5 OBS-2: before their bodies cost anything."""
    service = start_service(UNBANNED)
    forger, honest = service.seen_from("127.0.0.2"), service.seen_from("127.0.0.3")
    first = forge(forger)
    assert is_problem(first, 401)
    assert first.headers["ratelimit-policy"] == '"unverified";q=6;w=60'
    assert re.fullmatch(r'"unverified";r=5;t=(60|59)', first.headers["ratelimit"])
    assert codes(forger, 5) == [401] * 5
    over = forge(forger)
    assert is_problem(over, 429)
    assert over.json["code"] == "RATE_LIMITED"
    assert 0 < int(over.headers["retry-after"]) <= 60
    assert over.headers["ratelimit-policy"] == '"unverified";q=6;w=60'
    left_s = over.headers["retry-after"]
    assert over.headers["ratelimit"] == f'"unverified";r=0;t={left_s}'
    assert forger.deliver(paid("right")).http == 429, "nobody looks whether it is right"
    assert _answer_to_head(service.port, "127.0.0.2") == 429
    assert honest.deliver(paid("right")).http == 200
    assert service.metric("webhook_rate_limited_total", provider="tilda") == 3
    assert len(service.log_lines(event="security", action="rate_limited")) == 1
    assert service.metric("webhook_invalid_signature_total", provider="tilda") == 6


def test_an_address_with_verified_deliveries_has_a_higher_limit_and_is_neverbanned(
    start_service: StartService, database_url: str
) -> None:
    """SEC-4: a secret that was rotated wrongly must not cut off the gateway."""
    service = start_service(CONFIG)
    gateway = service.seen_from("127.0.0.2")
    assert gateway.deliver(paid("real")).http == 200
    assert codes(gateway, 14) == [401] * 12 + [429] * 2
    over = forge(gateway)
    assert over.headers["ratelimit-policy"] == '"verified_senders";q=12;w=60'
    until(lambda: rows(database_url, "SELECT * FROM verified_senders"))
    service.end()
    again = start_service(CONFIG).seen_from("127.0.0.2")
    assert codes(again, 13) == [401] * 12 + [429], "it is known after a restart, too"
    assert bans(again) == []


def test_who_sends_what_was_captured_is_not_known_for_it(shared: Shared) -> None:
    """SEC-4: a duplicate is authentic, whoever sends it."""
    service = shared.service
    assert service.seen_from("127.1.0.2").deliver(paid("real")).http == 200
    forger = service.seen_from("127.1.0.3")
    assert forger.deliver(paid("real")).json["status"] == "duplicate"
    assert set(codes(forger, 6)) >= {401, 403}


def limit_of(sender: Service) -> str:
    """The limit under which what cannot be verified is counted for a sender."""
    return forge(sender).headers["ratelimit-policy"].partition(";")[0].strip('"')


def test_a_captured_delivery_makes_nobody_known_under_other_ids_either(
    start_service: StartService,
) -> None:
    """SEC-4 INB-1: where the event's id is not signed, anybody can change it."""
    service = start_service(CONFIG + UNSIGNED_ID)
    said = {"type": "paid", "payment": "p-1", "amount": "990.00", "currency": "RUB"}
    gateway, thief = service.seen_from("127.0.0.3"), service.seen_from("127.0.0.2")
    assert gateway.deliver(said, source="ids", **{"x-id": "1"}).http == 200
    replayed = thief.deliver(said, source="ids", **{"x-id": "2"})
    assert (replayed.http, replayed.json["status"]) == (200, "duplicate")
    assert (limit_of(gateway), limit_of(thief)) == ("verified_senders", "unverified")


def test_who_contradicts_what_came_before_is_not_known_for_it(shared: Shared) -> None:
    """SEC-4: a captured delivery that does so does so each time."""
    service = shared.service
    sender = service.seen_from("127.1.0.4")
    assert service.deliver(paid("twice")).http == 200
    assert sender.deliver(paid("twice", amount="1.00")).json["status"] == "conflict"
    assert limit_of(sender) == "unverified"


def test_whoever_sends_what_is_settled_later_is_known(start_service: StartService) -> None:
    """SEC-4: a gateway whose events wait for a worker is as honest as another."""
    service = start_service(CONFIG + '\n[server]\nmode = "queued"\n').seen_from("127.0.0.3")
    assert service.deliver(paid("later")).json["status"] == "accepted"
    assert limit_of(service) == "verified_senders"


def test_a_forger_is_banned_listed_and_let_in_again(
    start_service: StartService, database_url: str
) -> None:
    """SEC-4 OPS-5 OBS-2 OBS-4: also after a restart, until an operator lifts it."""
    service = start_service(CONFIG)
    forger = service.seen_from("127.0.0.2")
    assert codes(forger, 5)[:4] == [401] * 4
    refused = forge(forger)
    assert is_problem(refused, 403)
    assert refused.json["code"] == "ADDRESS_BANNED"
    (ban,) = until(lambda: bans(service))
    assert ban["address"] == "127.0.0.2"
    assert (ban["reason"], ban["times"]) == ("bad_signature", 1)
    assert service.metric("addresses_banned") == 1
    assert service.metric("webhook_banned_total", provider="tilda") >= 1
    (line,) = service.log_lines(event="security", action="address_banned")
    assert line["address"] == "127.0.0.2"
    service.end()

    service = start_service(CONFIG)
    forger = service.seen_from("127.0.0.2")
    assert forge(forger).http == 403
    for nobody in ("127.0.0.9", "nonsense", "2001:db8::/64"):
        assert is_problem(service.api("DELETE", f"/bans/{nobody}"), 404)
    assert service.api("DELETE", "/bans/127.0.0.2").http == 204
    assert bans(service) == []
    until(lambda: service.log_lines(event="security", action="ban_lifted"))
    assert codes(forger, 4) == [401] * 4, "its score and its count were forgotten"
    assert _actions(database_url) == [
        ("paidonce", "address_banned"),
        ("bootstrap", "ban_lifted"),
    ]
    evidence = rows(database_url, "SELECT * FROM webhook_events WHERE NOT signature_valid")
    assert len(evidence) <= 10, "what is refused before its body leaves none"


def test_bans_are_listed_and_lifted_by_the_command_line(shared: Shared) -> None:
    """OPS-7 OPS-5"""
    service, address = shared.service, "127.1.1.2"
    forger = service.seen_from(address)
    until(lambda: forge(forger).http == 403)
    until(lambda: address in banned(service))
    listed = paidonce(service.folder, "bans", "list", "--json")
    assert address in [one["address"] for one in json.loads(listed.stdout)]
    lifted = paidonce(service.folder, "bans", "lift", address)
    assert lifted.returncode == 0, lifted.stderr
    assert paidonce(service.folder, "bans", "lift", address).returncode == 1
    until(lambda: forge(forger).http == 401)


def test_only_what_cannot_be_verified_adds_risk(shared: Shared) -> None:
    """SEC-4 REC-6: neither authentic deliveries that are refused nor an unsigned source's do."""
    service = shared.service
    authentic = service.seen_from("127.1.2.2")
    assert [authentic.deliver(b"not JSON").http for _ in range(20)] == [400] * 20
    unsigned = service.seen_from("127.1.2.3")
    headers = {"content-type": "application/json"}
    seen = [unsigned.request("POST", "/webhooks/kr", b'{"imp_uid": 1}', headers) for _ in range(20)]
    assert [one.http for one in seen] == [400] * 6 + [503] * 14, "it never tries again after 4xx"
    assert is_problem(seen[-1], 503)
    assert seen[-1].json["code"] == "RATE_LIMITED"
    assert "retry-after" in seen[-1].headers
    assert authentic.deliver(paid("real-2")).http == 200
    prober = service.seen_from("127.1.2.4")
    probed = [prober.request("POST", f"/webhooks/s{one}", b"").http for one in range(7)]
    assert probed == [404] * 6 + [429]
    assert not [address for address in banned(service) if address.startswith("127.1.2.")]


def test_a_header_of_an_untrusted_peer_changes_nothing(start_service: StartService) -> None:
    """SEC-1"""
    service = start_service(UNBANNED).seen_from("127.0.0.2")
    for number in range(6):
        forged = service.deliver(
            paid("x"), secret="a guess", **{"x-forwarded-for": f"192.0.2.{number}"}
        )
        assert forged.http == 401
    assert forge(service).http == 429
    assert service.deliver(paid("x"), **{"x-forwarded-for": "192.0.2.99"}).http == 429


def test_behind_a_trusted_proxy_its_clients_are_counted_and_it_is_neverbanned(
    start_service: StartService,
) -> None:
    """SEC-1 SEC-4"""
    config = CONFIG + '\n[server]\ntrusted_proxies = ["127.0.0.0/29"]\n'
    service = start_service(config)

    def forged_by(address: str) -> int:
        named = {"x-forwarded-for": address} if address else {}
        return service.deliver(paid("x"), secret="a guess", **named).http

    until(lambda: forged_by("192.0.2.1") == 403)
    assert forged_by("::ffff:192.0.2.1") == 403
    assert forged_by("192.0.2.2") == 401
    for host in range(8):
        forged_by(f"2001:db8:7::{host}")
    assert forged_by("2001:db8:7::ffff") == 403, "a /64 is one sender"
    assert forged_by("2001:db8:8::1") == 401
    assert [forged_by("") for _ in range(13)] == [401] * 12 + [429]
    until(lambda: banned(service) == ["192.0.2.1", "2001:db8:7::/64"])
    assert service.api("DELETE", "/bans/2001:db8:7::/64").http == 204
    assert service.deliver(paid("real"), **{"x-forwarded-for": "192.0.2.3"}).http == 200


def test_limits_of_all_requests_count_honest_ones_too(start_service: StartService) -> None:
    """SEC-1"""
    limits = '\n[limits]\nper_address = "3/minute"\nper_source = "5/minute"\n'
    service = start_service(BASIC + limits)
    here, there = service.seen_from("127.0.0.2"), service.seen_from("127.0.0.3")
    assert [here.deliver(paid(f"a{one}")).http for one in range(4)] == [200] * 3 + [429]
    over = here.deliver(paid("b"))
    assert over.headers["ratelimit-policy"] == '"per_address";q=3;w=60'
    assert [there.deliver(paid(f"c{one}")).http for one in range(3)] == [200] * 2 + [429]
    policy = there.seen_from("127.0.0.4").deliver(paid("d")).headers["ratelimit-policy"]
    assert policy == '"per_source";q=5;w=60'


def test_an_allow_list_may_name_hosts(shared: Shared) -> None:
    """SEC-2: one that is not found refuses nobody else, and lets nobody in."""
    service = shared.service
    assert service.deliver(paid("here"), source="named").http == 200
    assert service.seen_from("127.9.1.1").deliver(paid("there"), source="named").http == 200
    refused = service.seen_from("127.8.1.1").deliver(paid("else"), source="named")
    assert is_problem(refused, 403)
    assert refused.json["code"] == "ADDRESS_NOT_ALLOWED"
    (line,) = service.log_lines(event="host_not_found")
    assert line["host"] == "nowhere.invalid"
    assert service.log_lines(event="security", action="address_not_allowed")


def test_what_is_mounted_is_guarded_just_the_same(start_host: StartHost, tmp_path: Path) -> None:
    """SEC-1 SEC-4 USE-6"""
    (tmp_path / "host.py").write_text('import paidonce\npay = paidonce.asgi("paidonce.toml")\n')
    (tmp_path / "paidonce.toml").write_text(CONFIG, encoding="utf-8")
    host = start_host("host:pay", tmp_path)
    forger = host.seen_from("127.0.0.2")
    until(lambda: forge(forger).http == 403)
    assert host.seen_from("127.0.0.3").deliver(paid("real")).http == 200
    assert (
        forge(host.seen_from("127.0.0.3"))
        .headers["ratelimit-policy"]
        .startswith('"verified_senders"')
    )
    (ban,) = until(lambda: bans(host))
    assert ban["address"] == "127.0.0.2"


def test_guessing_keys_is_limited_and_locks_no_neighbour_out(shared: Shared) -> None:
    """SEC-6: who held a key there before goes on; whoever has not is not even looked at."""
    service = shared.service
    office, elsewhere = service.seen_from("127.1.3.2"), service.seen_from("127.1.3.3")
    other = service.api("POST", "/keys", {"name": "other", "scope": "read"}).json["key"]
    assert office.api("GET", "/bans").http == 200
    assert office.request("GET", "/api/v1/bans").http == 401, "no key is no guess"
    guesses = [office.api("GET", "/bans", key=f"po_guess-{one}") for one in range(4)]
    assert [one.http for one in guesses] == [401] * 3 + [429]
    assert guesses[0].headers["ratelimit-policy"] == '"api_keys";q=3;w=60'
    assert is_problem(guesses[-1], 429)
    assert "retry-after" in guesses[-1].headers
    assert office.api("GET", "/bans").http == 200, "this key was valid here before"
    assert office.api("GET", "/bans", key=other).http == 429, "this one is not looked at"
    assert elsewhere.api("GET", "/bans", key=other).http == 200
    for one in range(30):
        office.api("GET", "/bans", key=f"po_more-{one}")
    assert office.api("GET", "/bans").http == 429, "far over the limit nobody is let in"
    assert service.log_lines(event="security", action="key_refused")


def test_keys_are_made_listed_and_revoked_by_admins_alone(
    start_service: StartService, database_url: str
) -> None:
    """SEC-6 OBS-4"""
    service = start_service()
    made = service.api("POST", "/keys", {"name": "ops", "scope": "operate"})
    assert made.http == 201
    assert made.json.keys() == {"id", "name", "scope", "key"}
    key = made.json["key"]
    assert service.api("GET", "/payments", key=key).http == 200
    for method, path, body in (
        ("GET", "/keys", None),
        ("POST", "/keys", {"name": "mine", "scope": "admin"}),
        ("DELETE", f"/keys/{made.json['id']}", None),
    ):
        assert is_problem(service.api(method, path, body, key=key), 403)
    listed = service.api("GET", "/keys", limit=1).json
    assert [one["name"] for one in listed["items"]] == ["bootstrap"]
    rest = service.api("GET", "/keys", cursor=listed["next_cursor"]).json
    assert [one["name"] for one in rest["items"]] == ["ops"]
    assert rest["items"][0]["last_used_at"] is not None
    assert key not in json.dumps(listed | rest)
    assert service.api("DELETE", f"/keys/{made.json['id']}").http == 204
    assert is_problem(service.api("DELETE", f"/keys/{made.json['id']}"), 404)
    assert is_problem(service.api("GET", "/payments", key=key), 401)
    for wrong in ({"name": "x"}, {"name": "", "scope": "read"}, {"name": "x", "scope": "root"}):
        assert is_problem(service.api("POST", "/keys", wrong), 400)
    assert _actions(database_url) == [
        ("bootstrap", "key_created"),
        ("bootstrap", "key_revoked"),
    ]


def test_every_call_needs_a_key_and_whatever_changes_something_more_than_read(
    start_service: StartService,
) -> None:
    """SEC-6: as the description lists them, so that none is forgotten."""
    service = start_service(BASIC + '\n[limits]\napi_keys = ""\n')
    read = service.api("POST", "/keys", {"name": "reader", "scope": "read"}).json["key"]
    described = service.request("GET", "/openapi.json").json["paths"]
    calls = [
        (method.upper(), re.sub(r"\{\w+(:path)?\}", "x", path))
        for path, methods in described.items()
        for method in methods
        if path.startswith("/api/")
    ]
    assert len(calls) > 15
    for method, path in calls:
        assert is_problem(service.request(method, path, b"{}"), 401), path
        wrong = {"authorization": "Bearer po_nobody-has-such-a-key"}
        assert is_problem(service.request(method, path, b"{}", wrong), 401), path
        if method != "GET":
            allowed = {"authorization": f"Bearer {read}", "content-type": "application/json"}
            assert is_problem(service.request(method, path, b"{}", allowed), 403), path


def _actions(database_url: str) -> list[tuple[str, str]]:
    found: list[Row] = rows(
        database_url, "SELECT actor, action FROM audit_log WHERE event_id IS NULL ORDER BY id"
    )
    kept = [(row["actor"], row["action"]) for row in found]
    return [one for one in kept if one != ("host", "key_created")]


def _answer_to_head(port: int, sender: str) -> int:
    """The answer to a delivery of which only the headers were sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, 30, source_address=(sender, 0))
    try:
        connection.putrequest("POST", "/webhooks/payments")
        connection.putheader("content-length", "1000")
        connection.putheader("x-signature", signature(b""))
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()

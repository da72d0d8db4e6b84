"""What the doctor makes of what it saw: every fault is an error or a warning with a way out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.bookie.membership.cookie import Cookie
from bookgate.bookie.replication.audits.audit_rules import HeldBack
from bookgate.bookie.tools.doctor.diagnosis import FEWEST_FILES, judge
from bookgate.bookie.tools.doctor.findings import Finding, FindingLevel
from bookgate.bookie.tools.doctor.observations import (
    BookieView,
    Deployment,
    GatewayView,
    HttpView,
    RecoveryView,
    Validity,
)
from bookgate.ledger.bookie_info import BOOKIE_RPC, HTTP, BookieServiceInfo, Endpoint
from bookgate.ledger.metadata_store import RegisteredBookie
from bookgate.ledger.replication_survey import Survey

GIB = 2**30
NOW_MS = 1_700_000_000_000
SURVEY = Survey(0, None, 0, 0, 0, {}, frozenset())
RECOVERY = RecoveryView(NOW_MS, None, True, "o1", SURVEY)
GATEWAY = GatewayView("g1:4181", True, instance_id="abc", features=("scopes",), bookies=())
WELL = HttpView(0.2, "bookgate/1", True, FEWEST_FILES, 100)


def bookie(name: str = "b1", *, writable: bool = True, extensions: tuple[str, ...] = ()) -> BookieView:
    endpoints = (Endpoint("bookie", name, 3181, BOOKIE_RPC, (), extensions), Endpoint("http", name, 8080, HTTP))
    registered = RegisteredBookie(BookieServiceInfo(name, endpoints), writable, not writable)
    cookie = Cookie(name, "/j", "1\t/l", "abc").encode()
    return BookieView(registered, total_bytes=100 * GIB, free_bytes=60 * GIB, cookie=cookie, http=WELL)


def deployment(*bookies: BookieView) -> Deployment:
    others = tuple(bookie(f"o{number}") for number in range(3))
    return Deployment((GATEWAY,), (*bookies, *others), own_version="bookgate/1", recovery=RECOVERY)


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not FindingLevel.OK]


def test_addresses_that_two_have_or_nobody_else_reaches() -> None:
    def at(name: str, host: str) -> BookieView:
        view = bookie(name)
        endpoints = (Endpoint("bookie", host, 3181, BOOKIE_RPC),)
        return replace(view, bookie=replace(view.bookie, info=replace(view.bookie.info, endpoints=endpoints)))

    [same] = bad(judge(deployment(at("b1", "x"), at("b2", "x"))))
    assert (same.level, same.subject) == (FindingLevel.ERROR, "addresses")
    assert "b1 and b2 have registered the same entry port, x:3181" in same.what
    for host in ("127.0.0.1", "::1", "localhost"):
        [local] = bad(judge(deployment(at("b1", host))))
        assert "b1: the address is of its own machine only" in local.what
    everybody = Deployment((GATEWAY,), tuple(at(f"b{number}", f"127.0.0.{number}") for number in range(1, 4)))
    assert bad(judge(everybody)) == []


def test_nothing_is_found_where_all_is_well() -> None:
    findings = judge(deployment(bookie()))
    assert bad(findings) == []
    assert [each.subject for each in findings] == [
        "gateway g1:4181", "bookie b1", "bookie o0", "bookie o1", "bookie o2", "cluster", "clocks", "versions",
        "auto-recovery",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("view", "level", "words"),
    [
        (replace(bookie(), entry_error="refused"), FindingLevel.ERROR, "does not serve: refused"),
        (bookie(writable=False), FindingLevel.WARNING, "read-only, 60.0 GiB free"),
        (replace(bookie(), free_bytes=9 * GIB), FindingLevel.WARNING, "91% full"),
        (replace(bookie(), free_bytes=4 * GIB), FindingLevel.ERROR, "96% full"),
        (
            replace(bookie(), http=replace(WELL, fullest_disk=0.93)),
            FindingLevel.WARNING,
            "one of its disks is 93% full",
        ),
        (replace(bookie(), tls="TLS failed: x"), FindingLevel.ERROR, "announces TLS, which fails: TLS failed: x"),
        (replace(bookie(), tls="unverified"), FindingLevel.WARNING, "could not be checked"),
        (replace(bookie(), cookie=None), FindingLevel.ERROR, "no cookie"),
        (replace(bookie(), cookie=None, cookie_error="denied"), FindingLevel.WARNING, "could not be read: denied"),
        (replace(bookie(), cookie=b"?"), FindingLevel.ERROR, "damaged"),
        (replace(bookie(), cookie=Cookie("b2", "/j", "1\t/l", "abc").encode()), FindingLevel.ERROR, "of bookie b2"),
        (replace(bookie(), cookie=Cookie("b1", "/j", "1\t/l", "xyz").encode()), FindingLevel.ERROR, "of cluster xyz"),
        (replace(bookie(), http=None, http_error="refused"), FindingLevel.WARNING, "HTTP admin is out of reach"),
        (replace(bookie(), http=replace(WELL, running=False)), FindingLevel.ERROR, "not running"),
        (replace(bookie(), http=replace(WELL, max_files=1024)), FindingLevel.WARNING, "1024 files only"),
        (replace(bookie(), http=replace(WELL, open_files=FEWEST_FILES - 9)), FindingLevel.ERROR, "are in use"),
    ],
)
def test_a_fault_of_a_bookie(view: BookieView, level: FindingLevel, words: str) -> None:
    [finding] = bad(judge(deployment(view)))
    assert (finding.level, finding.subject) == (level, "bookie b1")
    assert words in finding.what
    assert finding.advice


def test_a_full_disk_is_why_a_bookie_is_read_only() -> None:
    [finding] = bad(judge(deployment(replace(bookie(writable=False), free_bytes=1 * GIB))))
    assert "becomes writable by itself" in finding.advice
    one = replace(bookie(writable=False), http=replace(WELL, fullest_disk=0.97))
    [finding] = bad(judge(deployment(one)))
    assert finding.advice.startswith("one of its disks is 97% full")
    [finding] = bad(judge(deployment(bookie(writable=False))))
    assert "state/readonly" in finding.advice


@pytest.mark.parametrize(
    ("offset", "found"), [(4.0, False), (6.0, True), (-6.0, True)]
)  # fmt: skip
def test_clocks(offset: float, found: bool) -> None:
    findings = bad(judge(deployment(replace(bookie(), http=replace(WELL, clock_offset=offset)))))
    assert [each.subject for each in findings] == (["clocks"] if found else [])
    if found:
        assert ("b1 is 6 s ahead" if offset > 0 else "ahead of b1") in findings[0].what


def test_versions() -> None:
    [finding] = bad(judge(deployment(replace(bookie(), http=replace(WELL, version="bookgate/2")))))
    assert finding.what == "they differ: bookgate/1: o0, o1, o2, this command; bookgate/2: b1"


def test_too_few_bookies_for_an_ensemble() -> None:
    seen = replace(
        deployment(), bookies=(bookie("x"), bookie("y", writable=False), replace(bookie("z"), entry_error="-"))
    )
    wanted = [(ensemble, any(each.subject == "cluster" for each in bad(judge(seen, ensemble)))) for ensemble in (1, 2)]
    assert wanted == [(1, False), (2, True)]


def test_a_bookie_that_is_not_registered() -> None:
    missed = replace(RECOVERY, survey=replace(SURVEY, missed_since={"gone": NOW_MS - 3_725_000}))
    [finding] = bad(judge(replace(deployment(), absent=("gone",), recovery=missed)))
    assert (finding.level, finding.subject) == (FindingLevel.ERROR, "bookie gone")
    assert "not registered, missed for 1:02:05:" in finding.what
    assert "leave its ledgers to auto-recovery" in finding.advice
    for view in (None, replace(RECOVERY, enabled=False), replace(RECOVERY, auditor=None)):
        finding = bad(judge(replace(deployment(), absent=("gone",), recovery=view)))[0]
        assert "which it does not now" in finding.advice


@pytest.mark.parametrize(
    ("view", "level", "words"),
    [
        (replace(RECOVERY, enabled=False), FindingLevel.WARNING, "disabled for the whole cluster"),
        (replace(RECOVERY, auditor=None), FindingLevel.WARNING, "there is no auditor"),
        (
            replace(RECOVERY, survey=replace(SURVEY, unrecoverable=2)),
            FindingLevel.ERROR,
            "2 ledgers have entries of which no",
        ),
        (
            replace(RECOVERY, survey=replace(SURVEY, marked=5, oldest_mark_ms=NOW_MS - 3_601_000)),
            FindingLevel.WARNING,
            "lacked copies for 1:00:01, 5 ledgers are marked",
        ),
        (
            RecoveryView(NOW_MS, "no answer", True, "o1"),
            FindingLevel.WARNING,
            "could not be seen: no answer",
        ),
    ],
)
def test_a_fault_of_auto_recovery(view: RecoveryView, level: FindingLevel, words: str) -> None:
    [finding] = bad(judge(replace(deployment(), recovery=view)))
    assert (finding.level, finding.subject) == (level, "auto-recovery")
    assert words in finding.what
    assert finding.advice


def test_a_mark_of_late_is_no_fault() -> None:
    lately = replace(RECOVERY, survey=replace(SURVEY, marked=5, oldest_mark_ms=NOW_MS - 3_599_000))
    findings = judge(replace(deployment(), recovery=lately))
    assert bad(findings) == []
    assert findings[-1].what == "enabled, o1 is the auditor, 5 ledgers are marked for repair"


def test_the_auditor_holds_back() -> None:
    absent = tuple(f"gone{number}" for number in range(6))
    seen = replace(deployment(), absent=absent)
    assert [each for each in bad(judge(seen)) if each.subject == "auto-recovery"] == [], "their ledgers may be healed"
    held_back = replace(RECOVERY, held_back=HeldBack(absent[:4], 7))
    [finding] = [each for each in bad(judge(replace(seen, recovery=held_back))) if each.subject == "auto-recovery"]
    assert finding.level is FindingLevel.ERROR
    assert finding.what.startswith("4 of 7 bookies are missed at once: it marks no ledger")
    nobody = replace(held_back, auditor=None)
    assert bad(judge(replace(seen, recovery=nobody)))[-1].level is FindingLevel.WARNING


@pytest.mark.parametrize(
    ("view", "level", "words"),
    [
        (GatewayView("g2:1", True, error="refused"), FindingLevel.ERROR, "refused"),
        (GatewayView("g2:1", False, error="refused"), FindingLevel.WARNING, "out of reach from here"),
        (GatewayView("g2:1", True, store_error="lost"), FindingLevel.ERROR, "metadata store does not: lost"),
        (GatewayView("g2:1", True, refused="denied"), FindingLevel.WARNING, "does not tell this caller"),
        (replace(GATEWAY, address="g2:1", instance_id="xyz"), FindingLevel.ERROR, "different clusters"),
        (replace(GATEWAY, address="g2:1", features=()), FindingLevel.WARNING, "features differ"),
    ],
)
def test_a_fault_of_a_gateway(view: GatewayView, level: FindingLevel, words: str) -> None:
    [finding] = bad(judge(replace(deployment(), gateways=(GATEWAY, view))))
    assert finding.level is level
    assert words in finding.what
    assert finding.advice


def test_without_any_gateway_nothing_is_taken_for_healthy() -> None:
    findings = judge(Deployment((GatewayView("g:1", True, error="refused"),)))
    assert [(each.level, each.subject) for each in findings] == [
        (FindingLevel.ERROR, "gateway g:1"),
        (FindingLevel.ERROR, "cluster"),
    ]


def test_a_caller_whom_no_gateway_tells_anything_hears_nothing_of_the_store() -> None:
    [gateway, cluster] = judge(Deployment((GatewayView("g:1", True, refused="PERMISSION_DENIED: no binding"),)))
    assert "PERMISSION_DENIED: no binding" in gateway.what
    assert "token" in gateway.advice
    assert cluster.level is FindingLevel.ERROR
    assert not any(
        "store" in text or "serves" in text for each in (gateway, cluster) for text in (each.what, each.advice)
    )


def test_files() -> None:
    seen = replace(deployment(), file_problems={"a.toml": ("port: wrong", "host: wrong"), "b.toml": ()})
    findings = [each for each in judge(seen) if each.subject.startswith("file ")]
    assert [(each.subject, each.level) for each in findings] == [
        ("file a.toml", FindingLevel.ERROR),
        ("file a.toml", FindingLevel.ERROR),
        ("file b.toml", FindingLevel.OK),
    ]


@pytest.mark.parametrize(
    ("lifetime", "left", "told"),
    [(365, 31, False), (365, 29, True), (90, 23, False), (90, 22, True), (1, 0.3, False), (1, 0.2, True)],
)
def test_a_certificate_that_ends_soon_for_its_lifetime(lifetime: float, left: float, told: bool) -> None:
    validity = Validity(lifetime * 86_400, left * 86_400)
    gateway = replace(GATEWAY, certificate=validity)
    other = Validity(365 * 86_400, 300 * 86_400)
    seen = replace(deployment(replace(bookie(), certificates=(other, validity))), gateways=(gateway,))
    found = bad(judge(seen))
    assert [each.subject for each in found] == (["gateway g1:4181", "bookie b1"] if told else [])
    assert all(each.level is FindingLevel.WARNING and "its certificate ends in" in each.what for each in found)

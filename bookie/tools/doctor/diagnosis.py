"""The findings that follow from the observations, each with a remedy. Pure.

An error is a loss of service or data, now or soon; the command then ends with exit code 1. A warning is something an
operator should know. Anything that could not be examined is a warning as well: nothing is assumed to be healthy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta
from operator import attrgetter

from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException
from bookgate.bookie.tools.doctor.findings import Finding, FindingLevel, error, warning
from bookgate.bookie.tools.doctor.observations import BookieView, Deployment, GatewayView, Validity
from bookgate.bookie.tools.doctor.recovery import auto_recovery, lost_bookies
from bookgate.ledger.bookie_info import BOOKIE_RPC, HTTP

MOST_CLOCK_DIFFERENCE = 5.0
"""Seconds; a clock seen over HTTP is accurate to a second or two."""

FEWEST_FILES = 16_384

LEAST_LEFT = 30 * 86_400.0
LEAST_PART_LEFT = 0.25
"""What a certificate is renewed before: this many seconds, and this part of its lifetime, are left. The part is for
certificates of short lives, which something renews all the time.
"""

_FULL, _NEARLY_FULL = 0.95, 0.90
_MOST_FILES_OPEN = 0.9
_FILES = {"policy": "security_policy", "tokens": "security_tokens", "keys": "security_jwt_keys"}


def judge(seen: Deployment, ensemble_size: int = 3) -> list[Finding]:
    """All findings, in the order in which they should be read."""
    findings = [finding for view in seen.gateways for finding in _gateway(view)]
    findings += _gateways_agree(seen)
    if any(view.bookies is not None for view in seen.gateways):
        findings += [finding for bookie in seen.bookies for finding in _bookie(bookie, _instance_id(seen))]
        findings += lost_bookies(seen)
        findings += _cluster(seen, ensemble_size)
        findings += auto_recovery(seen)
    findings += [finding for file, problems in seen.file_problems.items() for finding in _file(file, problems)]
    return findings


def _gateway(view: GatewayView) -> Iterator[Finding]:
    subject = f"gateway {view.address}"
    if view.error is not None and view.listed:
        yield error(subject, view.error, "start it, open the way to it, or take it off the list of gateways")
    elif view.error is not None:
        yield warning(
            subject,
            f"registered by a bookie and out of reach from here: {view.error}",
            "start that bookie, or correct its advertised_address and gateway_port",
        )
    elif view.store_error is not None:
        yield error(
            subject,
            f"it answers, but its metadata store does not: {view.store_error}",
            "see that the store of its metadata_uri runs and that the gateway's host reaches it",
        )
    elif view.refused is not None:
        yield warning(
            subject,
            f"it does not tell this caller about the cluster: {view.refused}",
            "name a token of an operator, token_file (BOOKGATE_TOKEN_FILE), which goes over TLS only, or a certificate",
        )
    else:
        yield Finding(FindingLevel.OK, subject, "serves, and its metadata store answers")
    if view.certificate is not None:
        yield from _certificate(subject, view.certificate)


def _certificate(subject: str, certificate: Validity) -> Iterator[Finding]:
    if certificate.left < min(LEAST_LEFT, LEAST_PART_LEFT * certificate.lifetime):
        yield warning(
            subject,
            f"its certificate ends in {timedelta(seconds=int(certificate.left))}",
            "replace the files of its tls_cert and tls_key, which needs no restart: docs/security.md#rotation",
        )


def _gateways_agree(seen: Deployment) -> Iterator[Finding]:
    serving = [view for view in seen.gateways if view.bookies is not None]
    if not serving:
        refused = any(view.refused is not None for view in seen.gateways)
        why = "no gateway tells this caller about it" if refused else "no gateway serves"
        yield error("cluster", f"{why}, so nothing else could be looked at", "see the gateways above")
        return
    clusters = {view.instance_id: view.address for view in serving}
    if len(clusters) > 1:
        which = ", ".join(f"{address} of {instance_id}" for instance_id, address in sorted(clusters.items()))
        yield error("gateways", f"they serve different clusters: {which}", "give all the same metadata_uri")
    features = {tuple(sorted(view.features)): view.address for view in serving}
    if len(features) > 1:
        which = "; ".join(f"{address} has {', '.join(names) or 'none'}" for names, address in sorted(features.items()))
        yield warning("gateways", f"their features differ: {which}", "run the same version of all gateways")


def _instance_id(seen: Deployment) -> str:
    return next(view.instance_id for view in seen.gateways if view.bookies is not None)


def _bookie(view: BookieView, instance_id: str) -> list[Finding]:
    subject = f"bookie {view.bookie.bookie_id}"
    findings = [
        *_entry_port(subject, view),
        *_tls(subject, view),
        *_soonest(subject, view),
        *_mode(subject, view),
        *_cookie(subject, view, instance_id),
        *_http(subject, view),
    ]
    if not findings:
        state = "writable" if view.bookie.writable else "read-only"
        findings.append(Finding(FindingLevel.OK, subject, f"serves, {state}{_space(view)}"))
    return findings


def _entry_port(subject: str, view: BookieView) -> Iterator[Finding]:
    if view.entry_error is None:
        return
    endpoint = view.bookie.info.endpoint(BOOKIE_RPC)
    if endpoint is None:
        yield error(subject, "registered without an entry port", "restart it with a configuration of its own")
        return
    advice = f"start it, open the way to {endpoint.address}, or correct its advertised_address and port"
    if endpoint.auth or endpoint.extensions:
        advice += "; it announces TLS or authentication: set bookie_tls and auth_provider of the client to it"
    yield error(subject, f"its entry port {endpoint.address} does not serve: {view.entry_error}", advice)


def _tls(subject: str, view: BookieView) -> Iterator[Finding]:
    if view.tls is None or view.tls == "ok" or (view.entry_error is not None and view.tls == "unverified"):
        return
    if view.tls == "unverified":
        yield warning(
            subject, "it serves TLS; its certificate could not be checked", "name its authorities: bookie_tls_ca"
        )
        return
    yield error(
        subject,
        f"it announces TLS, which fails: {view.tls}",
        "correct its tls_cert and tls_key, or bookie_tls_ca here",
    )


def _soonest(subject: str, view: BookieView) -> Iterator[Finding]:
    """Its ports mostly have the same certificate, so the one that ends first stands for all."""
    if view.certificates:
        yield from _certificate(subject, min(view.certificates, key=attrgetter("left")))


def _mode(subject: str, view: BookieView) -> Iterator[Finding]:
    used = _used(view) or 0.0
    # A single full disk makes a bookie read-only, however much room there is on the others.
    fullest = (view.http and view.http.fullest_disk) or 0.0
    if view.bookie.read_only:
        yield warning(subject, f"read-only{_space(view)}", _until_writable(used, fullest))
    elif used >= _NEARLY_FULL:
        finding = error if used >= _FULL else warning
        yield finding(subject, f"its disks are {used:.0%} full{_space(view)}", "free space, or add disks or bookies")
    elif fullest >= _NEARLY_FULL:
        advice = "free space on it; bookie_ledger_dir_…_usage of its metrics says which it is"
        yield warning(subject, f"one of its disks is {fullest:.0%} full{_space(view)}", advice)


def _until_writable(used: float, fullest: float) -> str:
    if used >= _NEARLY_FULL:
        return "free space or add a disk: it becomes writable by itself"
    if fullest >= _NEARLY_FULL:
        return f"one of its disks is {fullest:.0%} full: free space on it, and it becomes writable by itself"
    return (
        "its disks have room: see disk_usage_threshold and its log, or set it writable in its console or over HTTP, "
        "with its http_token if it is not on loopback "
        '(PUT /api/v1/bookie/state/readonly {"readOnly": false})'
    )


def _used(view: BookieView) -> float | None:
    if view.total_bytes is None or view.free_bytes is None or view.total_bytes <= 0:
        return None
    return 1 - view.free_bytes / view.total_bytes


def _space(view: BookieView) -> str:
    if view.total_bytes is None or view.free_bytes is None:
        return ""
    return f", {view.free_bytes / 2**30:.1f} GiB free of {view.total_bytes / 2**30:.1f} GiB"


def _cookie(subject: str, view: BookieView, instance_id: str) -> Iterator[Finding]:
    advice = "stop it; bring back its cookie or, if its data is elsewhere, start it with empty directories"
    if view.cookie_error is not None:
        yield warning(subject, f"its cookie could not be read: {view.cookie_error}", "see the gateways")
        return
    if view.cookie is None:
        yield error(
            subject,
            "registered, but the metadata store has no cookie for it: the store may be another one, or older",
            "look whether metadata_uri leads to the right store (bookgate cluster instance-id, beside instanceId in "
            "the bookie's VERSION file) before anything is deleted or made anew; if it is, " + advice,
        )
        return
    try:
        cookie = Cookie.decode(view.cookie)
    except InvalidCookieException as damage:
        yield error(subject, f"its cookie in the metadata store is damaged: {damage}", advice)
        return
    if cookie.bookie_id != view.bookie.bookie_id:
        yield error(subject, f"its cookie in the metadata store is of bookie {cookie.bookie_id}", advice)
    if cookie.instance_id is not None and cookie.instance_id != instance_id:
        yield error(
            subject,
            f"its cookie is of cluster {cookie.instance_id}, and the gateways are of {instance_id}",
            "give bookie and gateways the same metadata_uri",
        )


def _http(subject: str, view: BookieView) -> Iterator[Finding]:
    if view.bookie.info.endpoint(HTTP) is None:
        return
    if view.http is None:
        # For a bookie that does not serve at all this adds nothing.
        if view.entry_error is None:
            yield warning(
                subject,
                f"its HTTP admin is out of reach, so clock, version and limits are unknown: {view.http_error}",
                "name its authorities: bookie_tls_ca"
                if "certificate verify failed" in (view.http_error or "")
                else "open the way to its http_port",
            )
        return
    if view.http.insecure:
        yield warning(
            subject,
            "its settings say insecure = true: other machines may reach it, and it need not know anybody",
            "authenticate, and take insecure out: docs/security.md",
        )
    if view.http.turned_down:
        yield warning(
            subject,
            "its HTTP admin does not tell this caller its state, settings and metrics",
            "name a token that may do http.read: token_file (BOOKGATE_TOKEN_FILE), which goes over TLS only",
        )
    if view.http.refused_files:
        files = " and ".join(_FILES.get(each, each) for each in view.http.refused_files)
        yield warning(
            subject,
            f"it can't use its {files} as they are now, and goes by what it read before",
            "correct the file, which needs no restart: event security_file or key_set in its log says what is wrong, "
            "`bookgate policy check FILE` all that is wrong with a policy",
        )
    if view.http.running is False:
        yield error(subject, "it says that it is not running", "see its log, and restart it")
    limit, used = view.http.max_files, view.http.open_files
    if limit is not None and used is not None and used >= limit * _MOST_FILES_OPEN:
        yield error(subject, f"{used} of {limit} file descriptors are in use", "raise the limit (LimitNOFILE)")
    elif limit is not None and limit < FEWEST_FILES:
        yield warning(
            subject,
            f"it may open {limit} files only, connections and entry logs included",
            f"raise the limit to {FEWEST_FILES} or more (ulimit -n, LimitNOFILE)",
        )


def _cluster(seen: Deployment, ensemble_size: int) -> Iterator[Finding]:
    usable = [view for view in seen.bookies if view.bookie.writable and view.entry_error is None]
    if len(usable) < ensemble_size:
        yield error(
            "cluster",
            f"{len(usable)} bookies take writes, and a ledger of ensemble size {ensemble_size} needs as many: none can "
            "be created",
            "bring back bookies or add some; until then create ledgers with a smaller ensemble",
        )
    else:
        yield Finding(
            FindingLevel.OK, "cluster", f"{len(usable)} bookies take writes, enough for an ensemble of {ensemble_size}"
        )
    yield from _addresses(seen)
    yield from _clocks(seen)
    yield from _versions(seen)


def _addresses(seen: Deployment) -> Iterator[Finding]:
    """Findings about the addresses of entry ports; whether something serves there is found by a request."""
    users: dict[str, list[str]] = {}
    for view in seen.bookies:
        endpoint = view.bookie.info.endpoint(BOOKIE_RPC)
        if endpoint is not None:
            users.setdefault(endpoint.address, []).append(view.bookie.bookie_id)
    for address, names in users.items():
        if len(names) > 1:
            yield error(
                "addresses",
                f"{' and '.join(names)} have registered the same entry port, {address}",
                "correct their advertised_address and port: entries of one would be sought at the other",
            )
    local = {address for address in users if _is_loopback(address)}
    if local and local != users.keys():
        alone = ", ".join(sorted(name for address in local for name in users[address]))
        yield error(
            "addresses",
            f"{alone}: the address is of its own machine only, and other bookies are elsewhere",
            "set its advertised_address to one that clients reach",
        )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _clocks(seen: Deployment) -> Iterator[Finding]:
    offsets = {
        view.bookie.bookie_id: view.http.clock_offset
        for view in seen.bookies
        if view.http is not None and view.http.clock_offset is not None
    }
    if not offsets:
        return
    values = {"this machine": 0.0, **offsets}
    late, early = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    difference = values[early] - values[late]
    if difference > MOST_CLOCK_DIFFERENCE:
        yield warning(
            "clocks",
            f"{early} is {difference:.0f} s ahead of {late}",
            "run a time service (chrony, systemd-timesyncd) on all machines",
        )
    else:
        yield Finding(FindingLevel.OK, "clocks", f"those of {len(offsets)} bookies and this machine agree")


def _versions(seen: Deployment) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for view in seen.bookies:
        if view.http is not None and view.http.version is not None:
            versions.setdefault(view.http.version, []).append(view.bookie.bookie_id)
    if seen.own_version is not None and versions:
        versions.setdefault(seen.own_version, []).append("this command")
    if len(versions) > 1:
        which = "; ".join(f"{version}: {', '.join(ids)}" for version, ids in sorted(versions.items()))
        yield warning("versions", f"they differ: {which}", "finish the upgrade, one bookie after the other")
    elif versions:
        yield Finding(FindingLevel.OK, "versions", f"{next(iter(versions))} everywhere")


def _file(file: str, problems: tuple[str, ...]) -> Iterator[Finding]:
    for problem in problems:
        yield error(f"file {file}", problem, "correct the file; see `bookgate config check`")
    if not problems:
        yield Finding(FindingLevel.OK, f"file {file}", "valid settings")

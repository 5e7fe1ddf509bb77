"""Decide who may use the server: check the Host header, the origin of a request and, if one is set, the token.

The server only reads files, but their content is private. A page of another site must not read it through the visitor's
browser, neither directly (cross-site requests) nor by a host name of its own that resolves to this machine (DNS
rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class AccessControl:
    """An ASGI middleware that refuses requests of other sites or without the token, and adds protective headers."""

    def __init__(self, app: App, host: str = "127.0.0.1", token: str | None = None) -> None:
        """Wrap an application.

        Args:
            app: The ASGI application.
            host: The address that the server is bound to.
            token: The secret that requests must contain; None: no secret, which is safe only for loopback addresses.
        """
        self._app, self._token = app, token
        self._is_local = is_loopback(host)
        self._names = {*_LOOPBACK, host.lower(), *(() if self._is_local else _own_names())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    *((key.encode(), value.encode()) for key, value in _HEADERS.items()),
                ]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(guarded, refusal[0], {"detail": refusal[1]})
            return
        if self._token is not None:
            query = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
            given = dict(query).get("token")
            if given is not None and _same(given, self._token):
                rest = urlencode([(key, value) for key, value in query if key != "token"])
                cookie = f"{cookie_name(self._token)}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                await _redirect(guarded, quote("/" + scope["path"].lstrip("/")) + (f"?{rest}" if rest else ""), cookie)
                return
            if not self._brings_token(headers):
                sentence = (
                    "This page needs its token: open the address that `ganherd ui` printed, which ends in ?token=…"
                )
                await _answer(guarded, 401, {"detail": sentence})
                return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return the HTTP status and the reason for refusing a request.

        Return None if the request comes from the page itself, or from the visitor, e.g. by typing the address.
        """
        host = headers.get("host", "")
        if not self._is_own(_name_of(host)):
            return (
                421,
                "This server does not answer under that name. Open it by its address, as `ganherd ui` printed it.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server only reads: use GET."
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, "Requests from other sites are refused."
        site = headers.get("sec-fetch-site", "none")
        is_visit = (
            headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
        )
        if site not in ("same-origin", "none") and not (is_visit and scope["path"] == "/"):
            return 403, "Requests from other sites are refused."
        return None

    def _is_own(self, name: str) -> bool:
        """Return whether the name in a Host header is one under which this server may be reached."""
        if name in self._names:
            return True
        if self._is_local:
            return False
        try:  # a numeric address, unlike a name, cannot be used for DNS rebinding; the token prevents other misuse
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _brings_token(self, headers: dict[str, str]) -> bool:
        """Return whether a request contains the token, as a cookie or as `Authorization: Bearer`."""
        assert self._token is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        # Browsers send the cookies of all ports of a host, so there may be invalid ones of other programs.
        pairs = [pair.strip().partition("=") for pair in headers.get("cookie", "").split(";")]
        return any(name == cookie_name(self._token) and _same(value, self._token) for name, _, value in pairs)


def cookie_name(token: str) -> str:
    """Return the name of the cookie for a token. It depends on the token, because all ports of a host share cookies."""
    return f"ganherd_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Return the host name or address in a Host header, without the port.

    >>> _name_of("localhost:8000"), _name_of("[::1]:80"), _name_of("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _own_names() -> set[str]:
    own = socket.gethostname().lower()
    return {own, own.partition(".")[0], socket.getfqdn().lower()}


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


async def _answer(send: Send, status: int, content: dict[str, str]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _redirect(send: Send, where: str, cookie: str) -> None:
    # a location that begins with two slashes would redirect to another host
    place = "/" + where.lstrip("/\\")
    headers = [
        (b"location", place.encode("latin-1", "replace")),
        (b"set-cookie", cookie.encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

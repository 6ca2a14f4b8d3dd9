"""LocalServer: the engine server as a supervised child of this process, on loopback.

It is shared by everything in the process that asks for it, restarted when it dies, and ends with the
process: also when the process is killed, because the child exits when its standard input closes. One that
lives but answers nothing any more is killed, and so restarted.
"""

from __future__ import annotations

import asyncio
import atexit
import http.client
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from tts_plugin.errors import EngineUnavailable, NotInstalled, TTSError, retold
from tts_plugin.link import Address

log = logging.getLogger(__name__)

_READY_S = 60.0  # from start to warmed up; the embedded voice takes 2, a large model on a slow disk longer
_POLL_S = 0.02
_END_S = 2.0
_BACK_OFF_S = 0.1  # after a child that did not come up; doubled with each in a row
_CHECK_S = 10.0  # between two looks at a child that is up, and how long it may take to answer one
_MISSED_CHECKS = 3  # in a row, after which it counts as hung; a busy machine misses one
_QUICK_DEATHS = 3  # children in a row that died before they were ready, after which callers get an error
_NEEDED = ("fastapi", "uvicorn", "prometheus_client")  # what the extra `server` brings


class LocalServer:
    """Starts the child on the first `address()`; every method may be called from any thread or loop.

    keep_port: never listen at another port than the first one, because others were told the address and
    cannot be told again; while somebody else has taken it, the child does not come up.
    """

    _shared: ClassVar[dict[Path | None, LocalServer]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, config: Path | None = None, *, keep_port: bool = False, check_s: float = _CHECK_S
    ) -> None:
        self._config = config
        self._keep_port = keep_port
        self._check_s = check_s
        self._owner = os.getpid()
        self._token = secrets.token_urlsafe(24)
        self._port = 0
        self._guard = threading.Lock()
        self._ready: Future[Address] = Future()
        self._supervisor: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    @classmethod
    def shared(cls, config: Path | None = None) -> LocalServer:
        """The one of this process for that config file. A child a process is the point: it holds the model,
        so this is the one place where the package keeps something process-wide."""
        with cls._lock:
            server = cls._shared.get(config)
            # after a fork its supervisor lives on in the parent only, so the new process starts its own
            if server is None or server._closed or server._owner != os.getpid():
                server = cls._shared[config] = cls(config)
                atexit.register(server.close)
            return server

    def start(self) -> None:
        """Start the child if it is not running yet; does not wait. NotInstalled if it cannot run here."""
        self._started()

    def _started(self) -> Future[Address]:
        """What the running or just started supervisor fulfils."""
        with self._guard:
            if self._closed:
                raise EngineUnavailable("this engine server was closed; ask for LocalServer.shared() again")
            if self._supervisor is None:
                require_installed()
                self._supervisor = threading.Thread(
                    target=self._supervise, name="engine-server-supervisor", daemon=True
                )
                self._supervisor.start()
            return self._ready

    async def address(self) -> Address:
        """Where it listens, as soon as it is warmed up.

        EngineUnavailable if it does not come up, at once whatever no second try can mend: NotInstalled,
        ConfigError, VoiceNotFound. Asking again starts it again.
        """
        # shielded: one caller that gives up must not cancel the others' wait
        return await asyncio.shield(asyncio.wrap_future(self._started()))

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def close(self) -> None:
        """End the child and wait for it, two seconds at most. Twice is fine."""
        if self._owner != os.getpid():
            return  # a copy that a fork made: the child is the parent's
        with self._guard:
            self._closed = True
            child, supervisor = self._child, self._supervisor
        if child is not None:
            _end(child)
        if supervisor is not None and supervisor is not threading.current_thread():
            supervisor.join(_END_S)

    def _supervise(self) -> None:
        deaths = 0
        while True:
            with self._guard:
                if self._closed:
                    break
                child = self._child = self._spawn()
            try:
                address = self._wait_ready(child)
            except TTSError as failed:
                deaths += 1
                elsewhere = self._port != 0 and not self._keep_port
                if elsewhere:
                    self._port = 0  # somebody else may have taken it, which a child calls a ConfigError
                _end(child)
                if deaths >= _QUICK_DEATHS or not (failed.retryable or elsewhere):
                    log.error("the engine server does not come up: %s", failed)
                    self._give_up(failed)
                    return
                time.sleep(_BACK_OFF_S * 2**deaths)
                continue
            deaths, self._port = 0, address.port
            self._ready.set_result(address)
            status = self._wait_end(child, address.port)
            self._renew()
            if not self._closed:
                log.warning("the engine server ended (status %s); starting it again", status)
            _end(child)
        if not self._ready.done():
            self._ready.set_exception(EngineUnavailable("the engine server was closed"))

    def _spawn(self) -> subprocess.Popen[bytes]:
        # the same port again after a death, so that an exported address stays true
        command = [sys.executable, "-m", "tts_plugin.server", "--child", "--port", str(self._port)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # never written: its end tells the child that we are gone
            stdout=subprocess.PIPE,
            # Ctrl-C at a terminal goes to the parent's whole group: it would end the child before the
            # parent has, which would start it again and then wait for that one's end
            process_group=0,
            # the token goes by environment, which other users cannot read, unlike argv
            env={**os.environ, "SPARKVOICE_TOKEN": self._token},
        )

    def _wait_ready(self, child: subprocess.Popen[bytes]) -> Address:
        assert child.stdout is not None
        deadline_s = time.monotonic() + _READY_S
        too_late = threading.Timer(_READY_S, child.kill)  # also ends the wait for its first line
        too_late.daemon = True
        too_late.start()
        try:
            first = json.loads(child.stdout.readline())
            _raise_told(first)
            port = int(first["port"])
            while child.poll() is None:
                status, state = self._answer(port, "/readyz", 1.0)
                if status == 200:
                    return Address(f"http://127.0.0.1:{port}", self._token)
                _raise_told(state)
                time.sleep(_POLL_S)
            doing = "while it warmed up"
        except (ValueError, KeyError, TypeError):
            doing = "before it listened"
        finally:
            too_late.cancel()
        raise EngineUnavailable(
            f"the engine server was not ready within {_READY_S:.0f} s; its log says why"
            if time.monotonic() >= deadline_s
            else f"the engine server ended {doing} (status {child.wait()}); its log says why"
        )

    def _wait_end(self, child: subprocess.Popen[bytes], port: int) -> int:
        """Wait until the child ends, and end it if it hangs; its exit status."""
        over = threading.Event()
        watch = threading.Thread(
            target=self._kill_if_hung, args=(child, port, over), name="engine-server-watch", daemon=True
        )
        watch.start()
        try:
            return child.wait()
        finally:
            over.set()

    def _kill_if_hung(self, child: subprocess.Popen[bytes], port: int, over: threading.Event) -> None:
        missed = 0
        while missed < _MISSED_CHECKS:
            if over.wait(self._check_s):
                return
            status, _ = self._answer(port, "/healthz", self._check_s)
            missed = 0 if status == 200 else missed + 1
        log.error("the engine server has hung and is killed")
        child.kill()

    def _answer(self, port: int, path: str, timeout_s: float) -> tuple[int, Any]:
        """Status and JSON, (0, None) if none comes."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def _renew(self) -> None:
        """The next callers wait for the next child."""
        with self._guard:
            self._ready = Future()

    def _give_up(self, error: TTSError) -> None:
        """Tell those who wait; who asks later starts it again."""
        with self._guard:
            failed, self._ready, self._supervisor = self._ready, Future(), None
        failed.set_exception(error)


def require_installed() -> None:
    """Raise NotInstalled if no engine server can run in this environment."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"no engine server can be started here without {' and '.join(missing)}: "
            'pip install "sparkvoice[hibari,server]", or name a running one by url= or SPARKVOICE_URL'
        )


def _raise_told(state: Any) -> None:
    """Raise the error that the child tells of, if it does."""
    match state:
        case {"error": {"code": str(code), "message": str(message), "retryable": bool(retryable)}}:
            raise retold(code, message, retryable)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child by closing its standard input, then by force."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()  # last: closing waits for whoever reads a line of it

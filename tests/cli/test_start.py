"""What `paidonce serve` says when it cannot start, and how it is configured."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.servers import StartService
from tests.support.service import BASIC, KEY, Service, paid
from tests.support.tools import free_port, is_problem, items, paidonce, start_in_each, until

HIDDEN = "a-very-hidden-secret"
SOURCE = f'[sources.payments]\nprovider = "tilda"\nsecrets = ["{HIDDEN}"]\n'

WRONG: dict[str, tuple[str, list[str]]] = {
    "empty secret": (SOURCE.replace(HIDDEN, ""), ["payments", "secret"]),
    "blank secret": (SOURCE.replace(HIDDEN, "  "), ["payments", "secret"]),
    "one secret of two is empty": (
        SOURCE.replace("]\n", ', ""]\n', 2).replace('[sources.payments, ""]', "[sources.payments]"),
        ["payments", "secret"],
    ),
    "no secrets": (SOURCE.replace(f'"{HIDDEN}"', ""), ["payments", "secret"]),
    "secrets left out": ('[sources.payments]\nprovider = "tilda"\n', ["payments", "secret"]),
    "variable is not set": (
        SOURCE.replace(HIDDEN, "env:TEST_NOT_SET"),
        ["payments", "TEST_NOT_SET"],
    ),
    "variable is empty": (
        SOURCE.replace(HIDDEN, "env:TEST_EMPTY"),
        ["payments", "TEST_EMPTY"],
    ),
    "file is missing": (SOURCE.replace(HIDDEN, "file:no-such-file"), ["payments", "no-such-file"]),
    "unknown provider": (SOURCE.replace("tilda", "tidla"), ["provider", "tidla", "tilda"]),
    "source name": (SOURCE.replace("payments", "Pay-ments"), ["Pay-ments"]),
    "source called health": (SOURCE.replace("payments", "health"), ["health"]),
    "misspelt section": (SOURCE + "[sever]\nport = 1\n", ["sever"]),
    "misspelt key": (SOURCE + "[server]\nprot = 1\n", ["server", "prot"]),
    "misspelt key of a source": (SOURCE + 'secret = "x"\n', ["payments", "secret"]),
    "port is a word": (SOURCE + '[server]\nport = "eighty"\n', ["port", "eighty"]),
    "port is too great": (SOURCE + "[server]\nport = 99999\n", ["port", "99999"]),
    "mode": (SOURCE + '[server]\nmode = "inlin"\n', ["mode", "inlin", "inline"]),
    "environment": ('environment = "prod"\n' + SOURCE, ["environment", "prod", "production"]),
    "price": (SOURCE + '[plans.a]\nprice="free"\ncurrency="RUB"\ndays=1\n', ["price", "free"]),
    "no toml": (SOURCE + "[database]\n[server\n", ["paidonce.toml"]),
    "database": (
        SOURCE + f'[database]\nurl = "mysql://a:{HIDDEN}@localhost/b"\n',
        ["database", "url", "postgresql"],
    ),
}  # fmt: skip


def test_each_mistake_in_the_configuration_is_named_and_no_secret_told(
    tmp_path: Path, database_url: str
) -> None:
    """USE-3 PRV-7 SEC-7: key, bad value and remedy; never an open door."""

    for name, (config, _) in WRONG.items():
        (tmp_path / name).mkdir()
        text = config if "[database]" in config else f'{config}[database]\nurl = "{database_url}"\n'
        (tmp_path / name / "paidonce.toml").write_text(text, encoding="utf-8")
    done = start_in_each(tmp_path)
    assert done.keys() == WRONG.keys()
    wrong = []
    for name, (code, told) in done.items():
        missing = [word for word in WRONG[name][1] if word not in told]
        if code == 0 or missing or HIDDEN in told or "Traceback" in told:
            wrong.append((name, code, missing, told))
    assert wrong == []


def test_a_bootstrap_key_that_is_none_is_named(tmp_path: Path, database_url: str) -> None:
    """USE-3 SEC-6"""
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}[database]\nurl = "{database_url}"\n')
    done = paidonce(tmp_path, "serve", "--port", "0", PAIDONCE_BOOTSTRAP_KEY="hidden-key")
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "PAIDONCE_BOOTSTRAP_KEY" in told
    assert "hidden-key" not in told
    assert "running at" not in told, "it was never running"


def test_a_busy_port_is_an_error_that_names_a_free_one(tmp_path: Path, database_url: str) -> None:
    """USE-3"""
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}[database]\nurl = "{database_url}"\n')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        done = paidonce(tmp_path, "serve", "--port", str(port))
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert str(port) in told
    named = {int(number) for number in re.findall(r"\b\d{4,5}\b", told)} - {port}
    assert named, f"no free port is named: {told}"
    assert "running at" not in told
    assert "Traceback" not in told


def test_a_database_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    """USE-3 SEC-7"""
    port = free_port()
    url = f"postgresql://me:{HIDDEN}@127.0.0.1:{port}/none"
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}[database]\nurl = "{url}"\n')
    done = paidonce(tmp_path, "serve", "--port", "0", timeout_s=60)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert str(port) in told
    assert "database" in told
    assert HIDDEN not in told
    assert "Traceback" not in told


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """USE-3: never a demo by accident."""
    done = paidonce(tmp_path, "serve", "--port", "0", PAIDONCE_CONFIG="absent.toml")
    assert done.returncode != 0
    assert "absent.toml" in done.stdout + done.stderr


def test_variables_override_the_file_and_secrets_come_from_outside(
    tmp_path: Path, database_url: str
) -> None:
    """USE-3 SEC-7 PRV-7"""
    port = free_port()
    (tmp_path / "secret.txt").write_text("from-a-file\n")
    config = BASIC.replace(
        'secrets = ["first-secret", "second-secret"]',
        'secrets = ["env:TEST_TILDA_SECRET", "file:secret.txt"]',
    )
    assert config != BASIC
    (tmp_path / "other.toml").write_text(
        f'{config}[database]\nurl = "{database_url}"\n[server]\nport = 1\n', encoding="utf-8"
    )
    variables = {
        "PAIDONCE_CONFIG": "other.toml",
        "PAIDONCE_SERVER__PORT": str(port),
        "PAIDONCE_SERVER__MAX_BODY_BYTES": "1000",
        "PAIDONCE_BOOTSTRAP_KEY": KEY,
        "TEST_TILDA_SECRET": "from-the-environment",
    }
    with (tmp_path / "stdout").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "paidonce", "serve"],
            cwd=tmp_path,
            env={**os.environ, **variables},
            stdout=out,
            stderr=out,
        )
    service = Service(tmp_path, process, port)
    try:
        assert until(lambda: _is_there(port) or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "stdout").read_text()
        assert until(lambda: service.request("GET", "/readyz").http == 200)
        service.user("env@example.com")
        for number, secret in enumerate(("from-the-environment", "from-a-file")):
            said = paid(f"env-{number}", email="env@example.com")
            assert service.deliver(said, secret=secret).json["status"] == "success"
        assert is_problem(service.deliver(paid("env-2"), secret="first-secret"), 401)
        assert is_problem(service.deliver(paid("env-2", note="x" * 1000)), 413)
        assert service.end(signal.SIGINT) == 0, "Ctrl-C is an ordinary end"
    finally:
        process.kill()
    assert "from-the-environment" not in (tmp_path / "stdout").read_text()


def test_a_second_secret_is_accepted_beside_the_first(start_service: StartService) -> None:
    """PRV-7: rotation without loss; two sources share nothing."""
    service = start_service(
        BASIC + '\n[sources.other]\nprovider = "tilda"\nsecrets = ["other-secret"]\n'
    )
    service.user("rotate@example.com")
    said = paid("rotate", email="rotate@example.com")
    first = service.deliver(said, secret="second-secret")
    assert first.json["status"] == "success"
    again = service.deliver(said, secret="first-secret")
    assert (again.json["status"], again.json["event_id"]) == ("duplicate", first.json["event_id"])
    assert is_problem(service.deliver(said, secret="other-secret"), 401)
    assert is_problem(service.deliver(said, source="other"), 401)
    elsewhere = service.deliver(said, source="other", secret="other-secret")
    assert elsewhere.json["status"] == "success"
    assert elsewhere.json["event_id"] != first.json["event_id"]
    assert len(items(service, "/payments", applied="true")) == 2


def _is_there(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.connect()
    except OSError:
        return False
    connection.close()
    return True


def test_a_wrong_option_is_explained(tmp_path: Path) -> None:
    """USE-2"""
    done = paidonce(tmp_path, "serve", "--nope")
    assert done.returncode != 0
    assert "Usage" in done.stdout + done.stderr
    assert "--nope" in done.stderr
    assert "Traceback" not in done.stderr

"""Where the broker is, from a URL or in parts; the password is never shown."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import PulseSettings

SECRET = "very-secret"


def test_all_settings_are_read_from_a_url() -> None:
    url = "amqps://me:very-secret@pulse.example.com:1234/my%2Fvhost?heartbeat=30&cafile=%2Fetc%2Fca.pem"
    assert PulseSettings.from_url(url) == PulseSettings(
        host="pulse.example.com",
        port=1234,
        user="me",
        password=SECRET,
        vhost="my/vhost",
        tls=True,
        heartbeat=30,
        ca_file="/etc/ca.pem",
    )


@pytest.mark.parametrize(
    ("url", "port", "vhost", "tls"),
    [
        ("amqp://u:p@h", 5672, "/", False),
        ("amqp://u:p@h/", 5672, "/", False),
        ("amqp://u:p@h/%2F", 5672, "/", False),
        ("amqps://u:p@h/taskcluster", 5671, "taskcluster", True),
        ("amqps://u:p@h/?frameMax=0", 5671, "/", True),
    ],
)
def test_parts_missing_in_a_url_have_defaults(url: str, port: int, vhost: str, *, tls: bool) -> None:
    settings = PulseSettings.from_url(url)
    assert (settings.effective_port, settings.vhost, settings.tls) == (port, vhost, tls)


def test_user_and_password_are_decoded() -> None:
    settings = PulseSettings.from_url("amqp://a%40b:c%2Fd%3A@h/")
    assert (settings.user, settings.password) == ("a@b", "c/d:")


def test_the_url_is_read_from_the_environment() -> None:
    assert PulseSettings.from_env({"PULSE_URL": "amqp://u:p@h/"}).host == "h"


def test_help_shows_no_variable_of_the_environment() -> None:
    """A default value is in the signature, which help(), editors and generated documentation show."""
    program = "from taskqueue_client.events import PulseSettings; help(PulseSettings)"
    environ = {**os.environ, "PULSE_URL": f"amqp://u:{SECRET}@h/"}
    shown = subprocess.run([sys.executable, "-c", program], env=environ, check=True, capture_output=True)
    assert b"from_env" in shown.stdout
    assert SECRET.encode() not in shown.stdout


def test_an_environment_without_a_url_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidArgument, match="PULSE_URL: the environment variable is not set; expected amqps://"
    ):
        PulseSettings.from_env({})
    with pytest.raises(InvalidArgument, match="PULSE_URL: '<not shown>' is not valid; expected amqps://"):
        PulseSettings.from_env({"PULSE_URL": f"http://u:{SECRET}@h/"})
    given: Any = f"amqp://u:{SECRET}@h/"
    with pytest.raises(InvalidArgument, match="environ: <class 'str'> is not valid; expected a dict"):
        PulseSettings.from_env(given)


@pytest.mark.parametrize(
    "url",
    [
        f"https://u:{SECRET}@h/",
        f"amqp://{SECRET}@h/",
        f"amqp://u:{SECRET}@/",
        f"amqp://u:{SECRET}@h:{SECRET}/",
        f"amqp://u:{SECRET}/x@h/",
        f"amqp://u:{SECRET}@[h/",
        f"amqp://u:{SECRET}@h/?heartbeat={SECRET}",
        f"amqp://u:{SECRET}@h/?verify=no",
        f"amqp://u:{SECRET}@h/?heartbeat=-3",
        f"amqp://u:{SECRET}@h:0/",
        f"{SECRET}",
        f"amqp://u:{SECRET}@h/".encode(),
        bytearray(f"amqp://u:{SECRET}@h/".encode()),
        5,
    ],
)
def test_an_invalid_url_is_refused_without_showing_the_url(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="amqps://user:password@host") as caught:
        PulseSettings.from_url(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("wrong", [{"tls": "no"}, {"tls": 0}, {"vhost": 5}, {"vhost": None}])
def test_a_part_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{next(iter(wrong))}: "):
        PulseSettings(host="h", user="u", password=SECRET, **wrong)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("amqps://u:p@h/?cafile=a%00b", "as cafile, the path of a file, without NUL"),
        ("amqps://u%00:p@h/", "as user, the name of a RabbitMQ user, without NUL and undecodable bytes"),
        ("amqps://u\udcff:p@h/", "as user, the name of a RabbitMQ user, without NUL and undecodable bytes"),
        ("amqps://u:p%00@h/", "as password, a str that is not empty, without NUL and undecodable bytes"),
        ("amqps://u:p@h/\udcff", "as vhost, a virtual host, without NUL and undecodable bytes"),
        ("amqps://u:p@h\udcff/", "as host, the name or address of the broker, not a URL"),
        (f"amqps://u:p@{'h' * 64}/", "as host, the name or address of the broker, not a URL"),
        ("amqps://u:p@h..h/", "as host, the name or address of the broker, not a URL"),
        ("amqps://u:p@h/?heartbeat=70000", "as heartbeat, a whole number, 0 to 65535"),
        ("amqps://u:p@h/?heartbeat=often", "as heartbeat, a whole number, 0 to 65535"),
        ("amqps://u:p@h:70000/", "as port, a whole number, 1 to 65535"),
        ("amqps://u:p@h:-1/", "as port, a whole number, 1 to 65535"),
        ("amqps://u:p@h:amqps/", "as port, a whole number, 1 to 65535"),
    ],
)
def test_an_error_of_a_url_says_which_part_is_not_valid(url: str, allowed: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        PulseSettings.from_env({"PULSE_URL": url})
    assert str(caught.value).startswith("PULSE_URL: '<not shown>' is not valid; expected amqps://user:")
    assert str(caught.value).endswith(f" and cafile; {allowed}")
    assert caught.value.__context__ is None


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(InvalidArgument, match="not verify"):
        PulseSettings.from_url("amqp://u:p@h/?verify=no")


def test_the_password_is_in_no_representation() -> None:
    settings = PulseSettings(host="h", user="u", password=SECRET)
    assert SECRET not in f"{settings} {settings!r}"
    assert str(settings) == "amqps://u:***@h:5671/%2F"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_file_of_authorities_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(FileNotFoundError, match=r"ca\.pem"):
        PulseSettings(host="h", user="u", password=SECRET, ca_file=missing).ssl_context()


def test_a_file_without_authorities_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.touch()
    with pytest.raises(OSError, match=r"ca\.pem"):
        PulseSettings(host="h", user="u", password=SECRET, ca_file=str(empty)).ssl_context()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": ""}, "host: "),
        ({"host": "amqp://h"}, "host: .* not a URL"),
        ({"host": f"u:{SECRET}@h"}, "host: .* not a URL"),
        ({"user": ""}, "user: "),
        ({"password": ""}, "password: "),
        ({"password": None}, "password: "),
        ({"port": 0}, "port: 0 is not valid; expected a whole number, 1 to 65535"),
        ({"port": "5672"}, "port: '5672'"),
        ({"heartbeat": -1}, "heartbeat: -1"),
        ({"heartbeat": 2.5}, "heartbeat: 2.5"),
        ({"ca_file": True}, "ca_file: True is not valid; expected str or PathLike or None"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name(change: dict[str, Any], words: str) -> None:
    parts: dict[str, Any] = {"host": "h", "user": "u", "password": SECRET, **change}
    with pytest.raises(InvalidArgument, match=words) as caught:
        PulseSettings(**parts)
    assert SECRET not in str(caught.value)


def test_an_ipv6_address_is_shown_as_in_a_url() -> None:
    assert str(PulseSettings.from_url("amqp://u:p@[::1]:1234/x")) == "amqp://u:***@[::1]:1234/x"

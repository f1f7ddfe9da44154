"""Downloads from a server on this machine: whole, resumed, broken off, wrong."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from isonorm.lab.data import DataError, load, mnist, sources
from isonorm.lab.data.download import Remote, fetch

CONTENT = bytes(range(256)) * 3000


@dataclass
class Server:
    """What it serves, how it behaves, and which ranges it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    continues: bool = True  # understands ranges
    breaks_off_after: int | None = None
    asked: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            content = state.files.get(self.path.lstrip("/"))
            if content is None:
                return self.send_error(404)
            start = 0
            if wanted and state.continues:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
                if start >= len(content):
                    return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: state.breaks_off_after])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}/"
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture
def remote(server) -> Remote:
    server.files["file.bin"] = CONTENT
    return Remote(server.url + "file.bin", hashlib.md5(CONTENT).hexdigest())


def test_a_file_arrives_whole_and_only_once(server, remote, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert fetch(remote, folder).read_bytes() == CONTENT
    assert [file.name for file in folder.iterdir()] == ["file.bin"]
    fetch(remote, folder)
    assert server.asked == [None]


@pytest.mark.parametrize("continues", [True, False])
def test_a_download_that_broke_off_goes_on_or_begins_anew(server, remote, tmp_path, continues):
    server.continues, server.breaks_off_after = continues, 100_000
    with pytest.raises(DataError, match=r"could not be downloaded to .*100000 of 768000 bytes"):
        fetch(remote, tmp_path)
    assert not (tmp_path / "file.bin").exists()
    server.breaks_off_after = None
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]
    assert [file.name for file in tmp_path.iterdir()] == ["file.bin"]


def test_a_download_killed_after_its_last_byte_is_finished(remote, tmp_path):
    (tmp_path / ".file.bin.part").write_bytes(CONTENT)
    assert fetch(remote, tmp_path).read_bytes() == CONTENT


def test_a_file_with_another_checksum_is_not_kept(server, remote, tmp_path):
    server.files["file.bin"] = b"<html>please log in</html>"
    with pytest.raises(DataError, match=f"not the published file: .* expected {remote.md5}"):
        fetch(remote, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_server_and_no_file_are_answered_in_one_sentence(server, remote, tmp_path):
    gone = Remote(server.url + "elsewhere.bin", remote.md5)
    nowhere = Remote("http://127.0.0.1:1/file.bin", remote.md5)
    for unreachable, reason in ((gone, "404"), (nowhere, "refused")):
        with pytest.raises(DataError) as caught:
            fetch(unreachable, tmp_path)
        sentence = str(caught.value)
        assert reason in sentence and str(tmp_path / unreachable.name) in sentence
        assert "\n" not in sentence
    assert list(tmp_path.iterdir()) == []


def test_load_fetches_what_is_missing_and_no_more(official, same, server, tmp_path, monkeypatch):
    parts = official.mnist(tmp_path / "server", packed=True)
    files = {file.name: file.read_bytes() for file in (tmp_path / "server").iterdir()}
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    server.files |= files
    remotes = tuple(Remote(server.url + name, value) for name, value in md5.items())
    monkeypatch.setattr(mnist, "MD5", md5)
    monkeypatch.setitem(
        sources.SOURCES, "mnist", sources.Source(mnist.mnist, "", "files", remotes=remotes)
    )
    folder = tmp_path / "data"
    folder.mkdir()
    there = "t10k-images-idx3-ubyte.gz"
    (folder / there).write_bytes(files[there])
    with pytest.raises(DataError, match="mnist was not found"):
        load("mnist", folder)
    data = load("mnist", folder, download=True)
    same(data.train_images, data.train_labels, parts["train"])
    assert len(server.asked) == 3
    load("mnist", folder, download=True)
    assert len(server.asked) == 3

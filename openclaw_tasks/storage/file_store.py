"""A directory as a storage target.

An object is written to a temporary file of its own name in its final folder, synced, then linked to its key
(`create`) or renamed over it (`replace`), and the folder is synced: a writer killed at any moment leaves
nothing under the final name (Lightning-AI/pytorch-lightning#688), and of several creators one wins.
The file system must have hard links, and be one where `fsync` means it.

The root is created by `make_root` only. Once bound, every write first looks at the identity file by device
and inode, so a directory that vanished, was unmounted or replaced is never filled anew. A root that is
replaced in the microseconds between that look and the write is not covered.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from openclaw_tasks.errors import (
    AlreadyExistsError,
    NotFoundError,
    StoreError,
    TargetLostError,
    UsageError,
)
from openclaw_tasks.storage.store import (
    SWEEP_AGE_SECONDS,
    TEMPORARY_PREFIX,
    Buffer,
    check_key,
    check_prefix,
)

SCHEME = "file://"
_WRITE_TRIES = 5
_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "raise the quota or free some space there",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "the file system must have hard links, and this user the right to write",
    errno.EOPNOTSUPP: "the file system must have hard links",
    errno.EROFS: "mount it writable",
    errno.ENAMETOOLONG: "choose a shorter run name or target path",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


class FileStore:
    """Store and Target over the directory of a `file://` URL, which must be absolute."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix(SCHEME).removeprefix("localhost")
        if not url.startswith(SCHEME) or not path.startswith("/"):
            raise UsageError(f"target {url!r} must name a directory by its absolute path, like file:///data/t0")
        self._url = url
        self._root = Path(os.path.normpath(path))
        self._made: list[Path] = []
        self._identity: tuple[Path, int, int] | None = None

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: Buffer) -> None:
        self._publish(self._path(key), data, _link)

    def replace(self, key: str, data: Buffer) -> None:
        self._publish(self._path(key), data, os.replace)

    def read(self, key: str) -> bytes:
        path = self._path(key)
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self._check_identity()
            raise NotFoundError(f"{path} does not exist") from error
        except OSError as error:
            raise self._error("read", path, error) from error

    def list(self, prefix: str) -> list[str]:
        folder = self._root / check_prefix(prefix)
        try:
            keys = sorted(f"{prefix}{name}" for name in _files_below(folder, ""))
        except OSError as error:
            raise self._error("list", folder, error) from error
        self._check_identity()
        return keys

    def delete(self, key: str) -> None:
        path = self._path(key)
        self._check_identity()
        try:
            path.unlink()
            _sync_folder(path.parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._error("delete", path, error) from error
        self._remove_empty_folders(path.parent)

    def sweep_temporaries(self, older_than_seconds: float = SWEEP_AGE_SECONDS) -> int:
        self._check_identity()
        removed = 0
        try:
            limit = self._now() - older_than_seconds
            for name in _files_below(self._root, "", temporaries=True):
                path = self._root / name
                with suppress(FileNotFoundError):
                    if path.lstat().st_mtime <= limit:
                        path.unlink()
                        removed += 1
        except OSError as error:
            raise self._error("sweep", self._root, error) from error
        return removed

    def make_root(self) -> None:
        root = self._root.resolve()
        missing = [path for path in (root, *root.parents) if not path.exists()]
        for path in reversed(missing):
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise self._error("create", path, error) from error
            self._made.append(path)
            _sync_folder(path.parent)

    def unmake_root(self) -> int:
        removed = 0
        while self._made:
            try:
                self._made[-1].rmdir()
            except OSError:  # not empty: another target, or somebody else, uses it
                break
            self._made.pop()
            removed += 1
        return removed

    def bind(self, key: str) -> None:
        path = self._path(key)
        try:
            found = path.stat()
        except OSError as error:
            raise TargetLostError(f"{path} is gone: the target is lost") from error
        self._identity = (path, found.st_dev, found.st_ino)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _publish(self, path: Path, data: Buffer, publish: Callable[[Path, Path], None]) -> None:
        """Write a temporary file beside `path`, durably, and give it its name by `publish`."""
        self._check_identity()
        view = memoryview(data).cast("B")
        temporary = _temporary_beside(path)
        try:
            try:
                _write_durably(self._open_new(temporary), view)
                publish(temporary, path)
            finally:
                with suppress(OSError):  # a leftover shows in no list and is swept later
                    temporary.unlink()
        except OSError as error:
            raise self._error("write", path, error, needed_bytes=len(view)) from error
        try:
            _sync_folder(path.parent)
        except OSError as error:
            raise self._error("sync", path.parent, error) from error

    def _open_new(self, path: Path) -> int:
        """Open a new file, and make its folders where they are missing, but never the root.

        A folder just made can be gone again: `delete` removes empty ones.
        """
        for _ in range(_WRITE_TRIES):
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                self._check_identity()
                self._make_folders(path.parent)
        raise FileNotFoundError(errno.ENOENT, "its folder is removed again and again", str(path))

    def _make_folders(self, folder: Path) -> None:
        for part in reversed([folder, *folder.parents]):
            if part.is_relative_to(self._root) and part != self._root:
                with suppress(FileExistsError, FileNotFoundError):
                    part.mkdir()
                    _sync_folder(part.parent)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or somebody else removed it
                return
            folder = folder.parent

    def _now(self) -> float:
        """The time on the target's own clock, by which its files' ages are told."""
        probe = _temporary_beside(self._root / "clock")
        os.close(self._open_new(probe))
        now = probe.stat().st_mtime
        probe.unlink()
        return now

    def _check_identity(self) -> None:
        """TargetLostError unless the root, and the identity file if bound, are the ones we know."""
        if self._identity is None:
            if not self._root.is_dir():
                raise TargetLostError(f"{self._root} is not there: the target is lost")
            return
        path, device, inode = self._identity
        try:
            found = path.stat()
        except FileNotFoundError as error:
            raise TargetLostError(f"{path} is gone: the target is lost") from error
        except OSError as error:
            raise self._error("look at", path, error) from error
        if (found.st_dev, found.st_ino) != (device, inode):
            raise TargetLostError(f"{path} is another file than before: the target was replaced")

    def _error(self, action: str, path: Path, error: OSError, needed_bytes: int | None = None) -> StoreError:
        message = f"cannot {action} {path}: {error.strerror or error}"
        if needed_bytes is not None:
            message += f"; it needs {needed_bytes} bytes, {self._free_bytes()} are free on that file system"
        remedy = _REMEDIES.get(error.errno or 0)
        return StoreError(message if remedy is None else f"{message}; {remedy}")

    def _free_bytes(self) -> int | str:
        try:
            found = os.statvfs(self._root)
        except OSError:
            return "an unknown number of"
        return found.f_bavail * found.f_frsize


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")


def _write_durably(descriptor: int, view: memoryview) -> None:
    """Write all of `view`, sync, and close the descriptor in any case."""
    try:
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError as error:
        # On NFS a link that was made can be reported as failed; then our file has two names.
        if temporary.stat().st_nlink != 2:
            raise AlreadyExistsError(f"{path} already exists") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_below(folder: Path, prefix: str, *, temporaries: bool = False) -> Iterator[str]:
    """Names, relative to `folder`, of the files below it that are temporary or are not.

    Folders may vanish meanwhile: writers remove the ones that they have emptied.
    """
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(folder / entry.name, f"{prefix}{entry.name}/", temporaries=temporaries)
        elif entry.name.startswith(TEMPORARY_PREFIX) == temporaries and entry.is_file():
            yield f"{prefix}{entry.name}"

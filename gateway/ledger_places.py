"""Where archived months of the ledger are kept: a folder, or a prefix of an S3-compatible store."""

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from cost.ledger.archive_config import S3
from cost.ledger.archive_files import ArchiveReader, Codec, Place, PlaceUnreachable
from gateway.exporters.parquet import Bucket, open_store
from settings.private import private_folder


class BadPlace(Exception):
    """A place cannot be opened; says why."""


def open_place(text: str) -> Place:
    """Open a folder, or `s3://BUCKET/PREFIX` with AWS's own environment variables. Raises BadPlace."""
    if not text.startswith(S3):
        return FolderPlace(Path(text))
    bucket, _, prefix = text.removeprefix(S3).strip("/").partition("/")
    if not bucket:
        raise BadPlace(f"`{text}` names no bucket: write s3://BUCKET/PREFIX")
    try:
        return S3Place(bucket, prefix)
    except ImportError as error:
        raise BadPlace(f"`{text}` needs {error.name}: pip install 'weighbridge[s3]'") from None
    except Exception as error:  # noqa: BLE001 - the client has errors of its own for what the environment lacks
        raise BadPlace(f"`{text}` cannot be opened: {type(error).__name__}") from None


def open_codec() -> Codec:
    """Return what reads and writes Parquet. Raises BadPlace without pyarrow."""
    try:
        return Codec()
    except ImportError:
        raise BadPlace("archived months are Parquet files, which need pyarrow: pip install 'weighbridge[s3]'") from None


def open_archive(place: str, run: str) -> ArchiveReader:
    """Open the files of an archived month. Raises PlaceUnreachable."""
    try:
        return ArchiveReader(open_place(place), run, open_codec())
    except BadPlace as error:
        raise PlaceUnreachable(str(error)) from None


class FolderPlace:
    """A folder. Files are written beside their names, and then have these."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def text(self) -> str:
        """The folder's path."""
        return str(self._folder)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, to the disk itself. Raises PlaceUnreachable."""
        path = self._folder / name
        try:
            private_folder(self._folder)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            _sync_folders(path.parent, self._folder)
        except OSError as error:
            raise PlaceUnreachable(f"{self._folder} takes no file: {error.strerror}") from None

    def get(self, name: str, most: int) -> bytes | None:
        """Return a file, None where it is not there, or anything else for what is longer or no file. Raises PlaceUnreachable."""
        if not self._folder.is_dir():
            raise PlaceUnreachable(f"there is no folder {self._folder}")
        try:
            # A pipe has no writer, and would be waited for.
            with open(self._folder / name, "rb", opener=_without_waiting) as file:
                return file.read(most + 1)
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            return b""
        except OSError as error:
            raise PlaceUnreachable(f"{self._folder} cannot be read: {error.strerror}") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _sync_folders(folder: Path, last: Path) -> None:
    """Have the names on the disk, too: entries are deleted for these files."""
    while True:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
        if folder == last:
            return
        folder = folder.parent


class S3Place:
    """A prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        """Raise ImportError without obstore."""
        self._obstore: Any = importlib.import_module("obstore")
        self._errors: Any = importlib.import_module("obstore.exceptions")
        self._store = open_store(Bucket(bucket, prefix or "", region=""))
        self.text = f"{S3}{bucket}/{prefix}".rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Write an object. Raises PlaceUnreachable."""
        try:
            self._obstore.put(self._store, name, data)
        except (self._errors.BaseError, OSError) as error:
            raise PlaceUnreachable(f"{self.text} takes no object: {type(error).__name__}") from None

    def get(self, name: str, most: int) -> bytes | None:
        """Return an object, None where it is not there, or anything else for a longer one. Raises PlaceUnreachable."""
        try:
            found = self._obstore.get(self._store, name)
            return bytes(found.bytes()) if found.meta["size"] <= most else b""
        except FileNotFoundError:
            return None
        except (self._errors.BaseError, OSError) as error:
            raise PlaceUnreachable(f"{self.text} cannot be read: {type(error).__name__}") from None

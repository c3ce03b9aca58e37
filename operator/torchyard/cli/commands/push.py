"""`torchyard push [FOLDER] REGISTRY/REPOSITORY[:TAG]`."""

from pathlib import Path

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say


def push_arguments(parser: common.Parser) -> None:
    """Declare the command line of `push`."""
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=Path, default=Path(), help="folder of the code (default: this one)"
    )
    parser.add_argument("image", metavar="REGISTRY/REPOSITORY[:TAG]", help="where the image is written")
    common.output(parser, "json", help="print the image and the digest of the code as JSON")


def push(folder: Path, image: str, output: Format | None) -> int:
    """Carry out `torchyard push`.

    The files are those that `torchyard submit --code FOLDER` would send. The image is printed by its digest; a job
    names it in `spec.code.image`, and its pods mount it read-only. The same files give the same image on every machine,
    and what the registry has is not sent again.

    The credentials are those of `docker login`. Only a registry of this machine is reached without encryption.

    Exit codes: 0 written, 1 the registry failed, 64 the code cannot travel or the registry rejects the credentials.
    """
    import asyncio

    from torchyard.client.registry.push import push as write
    from torchyard.client.registry.reference import parse

    wanted = parse(image)
    if wanted.digest:
        raise RefusalError(f"{image} has a digest, which only the content decides", "leave it out")
    written = asyncio.run(write(folder, wanted, say))
    say(f"{wanted.host}/{wanted.repository}:{written.tag} is written; in a job file:")
    say(f"  code: {{image: {written.reference},\n         digest: {written.layer.digest}}}")
    if output is not None:
        emit({"image": written.reference, "tag": written.tag, "digest": written.layer.digest}, output)
    else:
        print(written.reference)
    return SUCCEEDED

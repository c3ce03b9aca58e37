"""Sign the intake's certificate again and again: `python3 -m torchyard.app.certificate`, beside the operator.

It runs in its own container, the only one that sees the key of the authority: an intruder in the operator cannot
sign. Certificates live for 90 days and are replaced after 60, without an upgrade and without a restart; none is kept
outside the pod.
"""

import argparse
import datetime as dt
import logging
import os
import shutil
import signal
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOK_SECONDS = 60.0
_SKEW = dt.timedelta(hours=1)
_EPOCH = "..data"
_PURPOSES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)

_log = logging.getLogger(__name__)


def main() -> None:
    """Keep a valid certificate in a folder until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ca", type=Path, required=True, help="folder of the authority: tls.crt and tls.key")
    parser.add_argument("--out", type=Path, required=True, help="folder to write tls.crt, tls.key and ca.crt into")
    parser.add_argument("--host", required=True, help="name of the intake")
    parser.add_argument("--days", type=int, default=90, help="life of a certificate")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # process 1 of a container has no default action for them
    while True:
        if is_due(options.ca, options.out, dt.datetime.now(dt.UTC)):
            ends_at = renew(options.ca, options.out, options.host, dt.timedelta(days=options.days))
            _log.info("signed a certificate for %s, valid until %s", options.host, ends_at.isoformat())
        if signal.sigtimedwait(ends, LOOK_SECONDS) is not None:
            return


def is_due(ca: Path, out: Path, now: dt.datetime) -> bool:
    """Return whether a folder holds no certificate of this authority with a third of its life left."""
    try:
        known = (out / "ca.crt").read_bytes()
        leaf = x509.load_pem_x509_certificate((out / "tls.crt").read_bytes())
    except (OSError, ValueError):
        return True
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return known != (ca / "tls.crt").read_bytes() or now >= leaf.not_valid_after_utc - life / 3


def renew(ca: Path, out: Path, host: str, life: dt.timedelta) -> dt.datetime:
    """Sign a certificate and put it in place of the one before, with its key, at once; return when it ends."""
    authority = (ca / "tls.crt").read_bytes()
    issuer = x509.load_pem_x509_certificate(authority)
    signer = serialization.load_pem_private_key((ca / "tls.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{ca / 'tls.key'} is no elliptic key; delete the Secret of the CA and upgrade the release")  # noqa: TRY004 -- a bad file
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    ends = min(now + life, issuer.not_valid_after_utc)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "torchyard-intake")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName(f"{host}.cluster.local")]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_usage("digital_signature"), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(_authority_key(issuer), False)
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _publish(out, {"tls.crt": leaf.public_bytes(serialization.Encoding.PEM), "tls.key": private, "ca.crt": authority})
    return ends


def new_authority(name: str, life: dt.timedelta) -> dict[str, bytes]:
    """Create a CA as the chart does, elliptic and for years.

    Args:
        name: common name.
        life: of its certificate.

    Returns:
        `tls.crt` and `tls.key` of its Secret.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(_usage("digital_signature", "key_cert_sign"), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    return {
        "tls.crt": certificate.public_bytes(serialization.Encoding.PEM),
        "tls.key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,  # that of Helm's genPrivateKey
            serialization.NoEncryption(),
        ),
    }


def _usage(*purposes: str) -> x509.KeyUsage:
    """Return a key usage that allows only some of all purposes."""
    return x509.KeyUsage(**{purpose: purpose in purposes for purpose in _PURPOSES})


def _authority_key(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _publish(out: Path, files: dict[str, bytes]) -> None:
    """Swap a link to a folder of all files, as the kubelet does with Secrets: a reader sees one generation."""
    data = out / _EPOCH
    before = out / data.readlink() if data.is_symlink() else None
    folder = out / f"..{os.urandom(8).hex()}"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o440)
        link = out / name
        if not link.is_symlink():
            link.symlink_to(Path(_EPOCH) / name)
    scratch = out / f"{folder.name}.link"
    scratch.symlink_to(folder.name)
    scratch.replace(data)
    if before is not None:
        shutil.rmtree(before)


if __name__ == "__main__":
    main()

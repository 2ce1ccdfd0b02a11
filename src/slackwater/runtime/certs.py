"""The certificates of a cluster: one authority, one certificate per node, operator and client.

    certs/
      ca.crt           public; every node and client has a copy
      ca.crl           public; what was revoked, for every node (and client) to have a copy
      ca.key           secret; keep it away from the nodes once they have their certificates
      node.crt/key     OU=node, CN=node or CN=node-3; the SANs are every name and address the node is dialed by
      client.root.crt/key  OU=operator, CN=root
      client.ann.crt/key   OU=client, CN=ann

The role is in the organizational unit; what each may do is in `access.py`.
Keys are on the P-256 curve and written with mode 0600, before their certificates, through a temporary file: a crash
leaves no half-written file behind.

Rules
    - An existing authority key is never overwritten: that would cut the cluster off from itself.
    - A node's or client's pair is replaced only when asked for (`replace=True`), to renew it.
    - Certificates start a day early, so that a node whose clock lags can use them at once.
    - A leaf lasts months, not years: renewing is routine then (`reload` in `tls.py`), and what was lost ends by itself.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slackwater.errors import UsageError
from slackwater.runtime.access import NODE_NAME
from slackwater.runtime.clock import RealClock
from slackwater.runtime.tls import TlsFiles, check_secret, client_files, node_files

CA_DAYS = 3650
LEAF_DAYS = 120
DAYS_MAX = 3650
BACKDATED_DAYS = 1
NODE_ID_MAX = 999_999_999
REVOKED_MAX = 10_000
CRL = "ca.crl"
ORGANIZATION = "Slackwater"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")


def create_ca(directory: Path) -> Path:
    """Create the authority; returns the path of its certificate. Refuses if a key is there."""
    key_path, certificate_path = directory / "ca.key", directory / "ca.crt"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(key_path, key, replace=False)
    name = _name("Slackwater CA")
    certificate = (
        _builder(name, name, key, days=CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return certificate_path


def create_node(
    directory: Path, hosts: list[str], *, node_id: int = 0, days: int = LEAF_DAYS, replace: bool = False
) -> TlsFiles:
    """Create a node's pair, valid for the host names and addresses given; with `node_id`, for that node only."""
    if not hosts:
        raise UsageError("name at least one host or address the node is dialed by")
    if not 0 <= node_id <= NODE_ID_MAX:
        raise UsageError("a node's id is a positive number, as `slackwater status` shows it", node_id=node_id)
    files = node_files(directory)
    sans = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    subject = _name(f"{NODE_NAME}-{node_id}" if node_id else NODE_NAME, role="node")
    _create_leaf(directory, files, subject, purposes, sans, days=days, replace=replace)
    return files


def create_client(directory: Path, user: str, *, days: int = LEAF_DAYS, replace: bool = False) -> TlsFiles:
    """Create a client's pair: for those who use tables. `user` becomes the common name and is no name of a node."""
    return _create_user(directory, user, "client", days=days, replace=replace)


def create_operator(directory: Path, user: str, *, days: int = LEAF_DAYS, replace: bool = False) -> TlsFiles:
    """Create an operator's pair: for those who run the cluster, who may do everything that people can do."""
    return _create_user(directory, user, "operator", days=days, replace=replace)


def _create_user(directory: Path, user: str, role: str, *, days: int, replace: bool) -> TlsFiles:
    if user == NODE_NAME or user.startswith(f"{NODE_NAME}-") or not _USER.match(user):
        raise UsageError(f"{user!r} cannot be the name of a {role}; use letters, digits, dot, dash, underscore")
    files = client_files(directory, user)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    _create_leaf(directory, files, _name(user, role=role), purposes, None, days=days, replace=replace)
    return files


def _create_leaf(
    directory: Path,
    files: TlsFiles,
    subject: x509.Name,
    purposes: list[x509.ObjectIdentifier],
    sans: x509.SubjectAlternativeName | None,
    *,
    days: int,
    replace: bool,
) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise UsageError(f"a certificate lasts from 1 to {DAYS_MAX} days", days=days)
    ca_key, ca = _load_ca(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(subject, ca.subject, key, days=days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if sans is not None:
        builder = builder.add_extension(sans, critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    _write_key(files.key, key, replace=replace)
    _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def revoke(directory: Path, which: list[str]) -> Path:
    """Add certificates, by file or serial number (hexadecimal), to the authority's list; returns the list's path.

    A list is dated a day back, for nodes whose clock lags, and newer than the one before, by the grain of its date.
    """
    if not which:
        raise UsageError("name at least one certificate to revoke")
    ca_key, ca = _load_ca(directory)
    path = directory / CRL
    now = _now() - datetime.timedelta(days=BACKDATED_DAYS)
    builder = x509.CertificateRevocationListBuilder().issuer_name(ca.subject).next_update(ca.not_valid_after_utc)
    known: dict[int, x509.RevokedCertificate] = {}
    if path.is_file():
        former = x509.load_pem_x509_crl(path.read_bytes())
        known = {entry.serial_number: entry for entry in former}
        now = max(now, former.last_update_utc + datetime.timedelta(seconds=1))
    for serial in map(_serial_of, which):
        if serial not in known:
            made = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            known[serial] = made.build()
    if len(known) > REVOKED_MAX:
        raise UsageError(f"a list has at most {REVOKED_MAX} entries; make a new authority", entries=len(known))
    for entry in known.values():
        builder = builder.add_revoked_certificate(entry)
    signed = builder.last_update(now).sign(ca_key, hashes.SHA256())
    _write(path, signed.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return path


def _serial_of(which: str) -> int:
    path = Path(which)
    if path.is_file():
        try:
            return x509.load_pem_x509_certificate(path.read_bytes()).serial_number
        except ValueError:
            raise UsageError(f"{which} is no certificate", file=which) from None
    try:
        serial = int(which.replace(":", ""), 16)
    except ValueError:
        serial = 0
    if not 0 < serial < 1 << 160:
        raise UsageError(f"{which!r} is neither the file of a certificate nor a serial number")
    return serial


def _load_ca(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    check_secret(directory / "ca.key")
    try:
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} is missing; run `slackwater cert create-ca` first") from None
    except ValueError as error:
        raise UsageError(f"the authority in {directory} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"the authority in {directory} was not made by `slackwater cert create-ca`")
    return key, certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=BACKDATED_DAYS))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(RealClock().wall_ns() // 1_000_000_000, datetime.UTC)


def _name(common_name: str, *, role: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION)]
    if role:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role))
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        try:
            return x509.DNSName(host)
        except ValueError as error:
            raise UsageError(f"{host!r} is neither a host name nor an address", host=host) from error


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, *, replace: bool) -> None:
    if path.exists() and not replace:
        raise UsageError(f"{path} exists and is not overwritten; move it away first", file=str(path))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(path, pem, mode=0o600, exclusive=not replace)


def _write(path: Path, data: bytes, *, mode: int, exclusive: bool = False) -> None:
    """Write a whole file or nothing; `exclusive` never replaces one, not even one made a moment ago."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        if exclusive:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    except FileExistsError:
        raise UsageError(f"{path} exists and is not overwritten; move it away first", file=str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)

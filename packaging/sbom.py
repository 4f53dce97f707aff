#!/usr/bin/env python3
"""Writes headroom-VERSION.spdx.json beside packages: what is really in them, as SPDX 2.3.

    packaging/sbom.py FOLDER SOURCE_ARCHIVE

Every file of each wheel, Debian package and the source archive is listed with its checksums. Libraries that a file needs are read from the file
itself; those that are compiled into it are recognised by text that they contain. The same packages give the same bytes.
"""
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

# Libraries that may be compiled into a file: bytes that each contains, with its version where it says it.
COMPILED_IN = {"zlib": re.compile(rb"inflate (\d[\d.]*) Copyright \d{4}-\d{4} Mark Adler"), "jansson": re.compile(rb"NUL byte in object key not supported()")}
LICENCES = {"zlib": "Zlib", "jansson": "MIT", "glibc": "LGPL-2.1-or-later", "headroom": "Apache-2.0"}
PROJECTS = {"libz": "zlib", "libjansson": "jansson", "libc": "glibc", "libm": "glibc", "libdl": "glibc", "ld-linux-x86-64": "glibc", "ld-linux-aarch64": "glibc"}


def tar_files(archive):
    return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}


def contents(path):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    if path.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], capture_output=True, check=True).stdout
        return tar_files(tarfile.open(fileobj=io.BytesIO(data)))
    return tar_files(tarfile.open(path))


def needed_by(data):
    """The names of the libraries that an ELF file needs."""
    with tempfile.NamedTemporaryFile() as file:  # readelf seeks
        file.write(data)
        file.flush()
        done = subprocess.run(["readelf", "-dW", file.name], capture_output=True, text=True, check=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout)


def version_of(project):
    done = subprocess.run(["pkg-config", "--modversion", project], capture_output=True, text=True)
    return done.stdout.strip()


class Document:
    def __init__(self, version, created):
        self.packages, self.files, self.relations, self.version = {}, [], [], version
        self.head = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"headroom-{version}",
                     "creationInfo": {"created": created, "creators": ["Tool: headroom-packaging-sbom"]}}

    def relate(self, one, kind, other):
        relation = {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
        if relation not in self.relations:
            self.relations.append(relation)

    def library(self, project, version=""):
        name = "SPDXRef-Library-" + project
        known = self.packages.setdefault(name, {"SPDXID": name, "name": project, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                                                "licenseConcluded": "NOASSERTION", "licenseDeclared": LICENCES.get(project, "NOASSERTION"), "copyrightText": "NOASSERTION"})
        if version:
            known["versionInfo"] = version
        return name

    def artifact(self, path):
        data = path.read_bytes()
        own = "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", path.name)
        sums = []
        for number, (name, file) in enumerate(sorted(contents(path).items())):
            sha1 = hashlib.sha1(file).hexdigest()
            sums.append(sha1)
            identity = f"{own}-{number}"
            self.files.append({"SPDXID": identity, "fileName": "./" + name.removeprefix("./"), "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
                               "checksums": [{"algorithm": "SHA1", "checksumValue": sha1}, {"algorithm": "SHA256", "checksumValue": hashlib.sha256(file).hexdigest()}]})
            self.relate(own, "CONTAINS", identity)
            if file[:4] == b"\x7fELF":
                self.libraries(own, name, file)
        self.packages[own] = {"SPDXID": own, "name": path.name.split("_")[0].split("-0")[0], "versionInfo": self.version, "packageFileName": path.name,
                              "downloadLocation": "NOASSERTION", "filesAnalyzed": True, "licenseConcluded": "NOASSERTION", "licenseDeclared": LICENCES["headroom"],
                              "copyrightText": "NOASSERTION", "checksums": [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}],
                              "packageVerificationCode": {"packageVerificationCodeValue": hashlib.sha1("".join(sorted(sums)).encode()).hexdigest()}}
        self.relate("SPDXRef-DOCUMENT", "DESCRIBES", own)

    def libraries(self, own, name, data):
        bundled = re.match(r"(?:.*/)?(lib[a-z]+)-[0-9a-f]+\.so", name)  # as auditwheel names what it adds
        if bundled and bundled.group(1) in PROJECTS:
            project = PROJECTS[bundled.group(1)]
            self.relate(own, "CONTAINS", self.library(project, version_of(project)))
            return
        for library in needed_by(data):
            stem = re.match(r"[a-z0-9_-]+?(?=-[0-9a-f]{8}\.|\.so|\.)", library).group(0)
            if not stem.startswith("libheadroom"):
                self.relate(own, "DEPENDS_ON", self.library(PROJECTS.get(stem, stem)))
        for project, pattern in COMPILED_IN.items():
            found = pattern.search(data)
            if found:
                self.relate(own, "STATIC_LINK", self.library(project, found.group(1).decode() or version_of(project)))

    def text(self):
        body = {**self.head, "packages": list(self.packages.values()), "files": self.files, "relationships": self.relations}
        digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
        body["documentNamespace"] = f"https://headroom.example.org/spdx/headroom-{self.version}-{digest[:16]}"
        return json.dumps(body, indent=1) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, source = Path(sys.argv[1]), Path(sys.argv[2])
    version = re.fullmatch(r"headroom-(.*)\.tar\.gz", source.name).group(1)
    newest = max(member.mtime for member in tarfile.open(source))
    document = Document(version, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(newest)))
    for path in [source, *sorted(folder.glob("*.whl")), *sorted(folder.glob("*.deb"))]:
        document.artifact(path)
    path = folder / f"headroom-{version}.spdx.json"
    path.write_text(document.text())
    print(f"{path}: {len(document.packages)} packages, {len(document.files)} files")


main()

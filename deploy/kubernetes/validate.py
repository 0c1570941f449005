#!/usr/bin/env python3
"""Validates manifests with the published JSON schemas of Kubernetes, without a cluster.

    deploy/kubernetes/validate.py SCHEMAS FILE...

SCHEMAS is a directory of schemas for one version, such as kubernetes-json-schema/v1.37.0-local-strict of the package
kubernetes-validate (pip). Unknown keys are errors. Kinds without a schema are named, and their exit code is 3.
"""

import json
import pathlib
import re
import sys

import jsonschema
import yaml


# The address of the definitions in the schemas.
SITE = "https://kubernetes.io"
DEFINITIONS = "/api/_definitions.json"


def validate(schemas, file):
    """Yields (severity, message) for each document of a file."""
    definitions = json.loads((schemas / "_definitions.json").read_text())
    for document in yaml.safe_load_all(file.read_text()):
        kind, version = document["kind"], document["apiVersion"]
        group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", version)
        path = schemas / f"{kind.lower()}-{group}.json"
        if not path.exists():
            yield 3, f"{file.name}: no schema for {kind} of {version}"
            continue
        schema = json.loads(path.read_text())
        # The definitions are in a file here, so nothing is fetched.
        resolver = jsonschema.RefResolver(SITE, schema, store={SITE + DEFINITIONS: definitions})
        validator = jsonschema.Draft202012Validator(schema, resolver=resolver)
        for error in validator.iter_errors(document):
            place = ".".join(str(part) for part in error.absolute_path)
            yield 1, f"{file.name}: {kind}: {place}: {error.message}"


def main():
    schemas, *files = [pathlib.Path(argument).resolve() for argument in sys.argv[1:]]
    found = [result for file in files for result in validate(schemas, file)]
    for _, message in found:
        print(message, file=sys.stderr)
    sys.exit(min((severity for severity, _ in found), default=0))


main()

"""Validates the manifests in a folder against the schemas of Kubernetes, strictly, and prints them as JSON.

    manifests.py FOLDER VERSION...

Schemas of custom resources are not known: tests check those. A file of Helm values has containers and volumes, which
are validated as those of a Pod.
"""

import json
import pathlib
import sys

import kubernetes_validate
import yaml

CUSTOM = ("kustomize.config.k8s.io/", "monitoring.coreos.com/", "traefik.io/")


def pod(values):
    """The containers and volumes that Traefik's chart adds, as a Pod."""
    deployment = values["deployment"]
    spec = {"containers": deployment["additionalContainers"], "volumes": deployment["additionalVolumes"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "values"}, "spec": spec}


folder, versions = pathlib.Path(sys.argv[1]), sys.argv[2:]
documents = []
for path in sorted(folder.rglob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        if "apiVersion" not in document:
            document = pod(document)
        documents.append({"file": str(path.relative_to(folder)), "document": document})
        if document["apiVersion"].startswith(CUSTOM):
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                place = ".".join(str(part) for part in error.path)
                sys.exit(f"{path}: {version}: {document['kind']}: {place}: {error.message}")
json.dump(documents, sys.stdout)

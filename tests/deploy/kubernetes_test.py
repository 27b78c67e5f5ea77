#!/usr/bin/env python3
"""kubernetes_test.py BATOND: the manifests of deploy/kubernetes, put together as kustomize does: every name in
them is there, their configurations are ones that batond takes, and batond and workers have the privileges
that deploy/kubernetes/README.md says, and no others. Where kubectl is there, it puts them together alike.

Of kustomize it knows what the manifests use, and refuses the rest.
"""

import copy
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from xml.sax.saxutils import quoteattr

import yaml

MANIFESTS = pathlib.Path("deploy/kubernetes")
BATOND = sys.argv.pop(1)


def read(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def patched(document, operations):
    """A JSON patch (RFC 6902), in place."""
    for operation in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        at = document
        for part in parents:
            at = at[int(part) if isinstance(at, list) else part]
        if isinstance(at, list) and last == "-" and operation["op"] == "add":
            at.append(operation["value"])
        elif operation["op"] == "add":
            at[last] = operation["value"]
        elif operation["op"] == "remove":
            del at[last]
        else:
            raise ValueError(f"{operation}: this test does not know it")


def built(directory):
    """The objects of a kustomization, without the hashes in names."""
    kustomization = read(directory / "kustomization.yaml")[0]
    objects = []
    for name in kustomization.pop("resources"):
        path = directory / name
        objects += built(path) if path.is_dir() else read(path)
    for generator in kustomization.pop("configMapGenerator", []):
        data = {name: (directory / name).read_text() for name in generator["files"]}
        former = [o for o in objects if is_named(o, "ConfigMap", generator["name"])]
        if len(former) != (1 if generator.get("behavior") == "replace" else 0):
            raise ValueError(f"{directory}: {generator}: there are {len(former)} of that name")
        objects = [o for o in objects if o not in former]
        metadata = {"name": generator["name"]}
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        )
    for patch in kustomization.pop("patches", []):
        target = patch["target"]
        (to,) = [o for o in objects if is_named(o, target["kind"], target["name"])]
        text = patch["patch"] if "patch" in patch else (directory / patch["path"]).read_text()
        patched(to, yaml.safe_load(text))
    namespace = kustomization.pop("namespace", None)
    for one in objects:
        if namespace and one["kind"] != "Namespace":
            one["metadata"]["namespace"] = namespace
    if set(kustomization) != {"apiVersion", "kind"}:
        raise ValueError(f"{directory}: {kustomization}: this test does not know it")
    return copy.deepcopy(objects)


def is_named(one, kind, name):
    return one["kind"] == kind and one["metadata"]["name"] == name


def the(objects, kind, name):
    (one,) = [o for o in objects if is_named(o, kind, name)]
    return one


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


class Manifests:
    """Of one overlay."""

    overlay = ""
    capabilities = set()  # of batond's

    def setUp(self):
        self.objects = built(MANIFESTS / "overlays" / self.overlay)

    def batond(self):
        pod = pod_of(the(self.objects, "DaemonSet", "batond"))
        (container,) = pod["containers"]
        return pod, container

    def worker(self):
        pod = pod_of(the(self.objects, "Deployment", "ledger"))
        (container,) = pod["containers"]
        return pod, container

    def test_kubectl_puts_them_together_alike(self):
        if not shutil.which("kubectl"):
            self.skipTest("there is no kubectl")
        with tempfile.TemporaryDirectory() as directory:
            copied = pathlib.Path(directory) / "kubernetes"  # it follows no links out of a base
            shutil.copytree(MANIFESTS, copied)
            text = subprocess.run(
                ["kubectl", "kustomize", copied / "overlays" / self.overlay],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        (hashed,) = set(re.findall(r"baton-config-[a-z0-9]{10}\b", text))
        theirs = list(yaml.safe_load_all(text.replace(hashed, "baton-config")))
        in_order = lambda some: sorted(some, key=lambda o: (o["kind"], o["metadata"]["name"]))
        self.assertEqual(in_order(theirs), in_order(self.objects))

    def test_what_they_name_is_there(self):
        namespace = the(self.objects, "Namespace", "baton")["metadata"]["name"]
        for one in self.objects:
            if one["kind"] in ("Namespace", "ConfigMap"):
                continue
            self.assertEqual(one["metadata"]["namespace"], namespace)
            labels = one["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(one["spec"]["selector"]["matchLabels"], labels)
            pod = pod_of(one)
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            mounts = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
            self.assertEqual(set(volumes), mounts)
            for volume in volumes.values():
                if "configMap" in volume:
                    config = the(self.objects, "ConfigMap", volume["configMap"]["name"])
                    self.assertEqual(config["metadata"]["namespace"], namespace)

    def test_batond_takes_the_configuration(self):
        _, container = self.batond()
        option, path = container["args"]
        self.assertEqual(option, "--config")
        mount, file = path.rsplit("/", 1)
        (volume,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == mount]
        self.assertEqual(volume, "config")
        text = the(self.objects, "ConfigMap", "baton-config")["data"][file]
        self.assertIn("\nstate_dir: \"/run/baton\"\n", text)
        self.assertIn("\ndistrust_contained_root: true\n", text)
        with tempfile.NamedTemporaryFile("w", suffix=".textproto") as config:
            config.write(text)
            config.flush()
            checked = subprocess.run(
                [BATOND, "--config", config.name, "--check"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_batond_ends_connections_for_nothing(self):
        daemons = the(self.objects, "DaemonSet", "batond")
        self.assertEqual(daemons["spec"]["updateStrategy"], {"type": "OnDelete"})
        _, container = self.batond()
        self.assertNotIn("livenessProbe", container)
        for probe in ("startupProbe", "readinessProbe"):
            self.assertEqual(container[probe]["exec"]["command"][:2], ["baton", "status"])

    def test_batond_has_what_it_needs(self):
        pod, container = self.batond()
        security = container["securityContext"]
        self.assertEqual(set(security["capabilities"]["add"]), self.capabilities)
        self.assertEqual(security["capabilities"]["drop"], ["ALL"])
        self.assertEqual(security["runAsUser"], 0)  # or they would be nobody's
        self.assertIs(security["privileged"], False)
        self.assertIs(security["allowPrivilegeEscalation"], False)
        self.assertIs(security["readOnlyRootFilesystem"], True)
        self.assertIs(pod["hostPID"], True)
        self.assertEqual(pod.get("hostNetwork", False), self.overlay == "rdma")
        self.assertNotIn("hostIPC", pod)
        devices = [r for r in container["resources"]["limits"] if r.startswith("rdma/")]
        self.assertEqual(len(devices), 1 if self.overlay == "rdma" else 0)
        paths = [v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v]
        self.assertEqual(paths, ["/run/baton"])

    def test_a_worker_has_the_sockets_and_nothing_else(self):
        pod, container = self.worker()
        for shared in ("hostPID", "hostNetwork", "hostIPC"):
            self.assertIs(pod[shared], False)
        self.assertIs(pod["automountServiceAccountToken"], False)
        (volume,) = pod["volumes"]
        # Not the operators' socket, nor other services'; and none to be replaced.
        self.assertEqual(volume["hostPath"], {"path": "/run/baton/ledger", "type": "Directory"})
        (mount,) = container["volumeMounts"]
        self.assertEqual(mount["mountPath"], "/run/baton/ledger")
        self.assertIs(mount["readOnly"], True)
        security = container["securityContext"]
        self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
        self.assertIs(security["privileged"], False)
        self.assertIs(security["allowPrivilegeEscalation"], False)
        self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
        self.assertFalse([r for r in container["resources"]["limits"] if "/" in r])

    def test_an_heir_is_there_at_any_time(self):
        workers = the(self.objects, "Deployment", "ledger")["spec"]
        self.assertGreaterEqual(workers["replicas"], 2)
        self.assertEqual(workers["strategy"]["rollingUpdate"]["maxUnavailable"], 0)

    def test_the_service_takes_the_worker(self):
        pod, container = self.worker()
        text = the(self.objects, "ConfigMap", "baton-config")["data"]["baton.textproto"]
        uid = pod["securityContext"]["runAsUser"]
        self.assertIn(f"worker_uids: {uid}\n", text)
        self.assertEqual(container["args"][:2], ["--socket", "/run/baton/ledger/worker.sock"])
        self.assertIn('name: "ledger"', text)

    def test_the_images_are_those_of_the_recipes(self):
        recipes = pathlib.Path("deploy/container")
        worker = (recipes / "ledger.Containerfile").read_text()
        _, container = self.batond()
        self.assertIn(f"ARG BASE={container['image']}\n", worker)
        pod, container = self.worker()
        self.assertIn(f"-t {container['image']} ", worker)
        self.assertIn(f"USER {pod['securityContext']['runAsUser']}:", worker)


class Soft(Manifests, unittest.TestCase):
    overlay = "soft"
    capabilities = {"KILL"}


class Rdma(Manifests, unittest.TestCase):
    overlay = "rdma"
    capabilities = {"KILL", "IPC_LOCK"}


class All(unittest.TestCase):
    def test_there_are_the_overlays_that_are_tested_and_no_others(self):
        there = {path.name for path in (MANIFESTS / "overlays").iterdir()}
        self.assertEqual(there, {Soft.overlay, Rdma.overlay})


def report_skips(skipped):
    """To Bazel, as cases that report_tests.py counts."""
    cases = "".join(
        f'<testcase classname="KubernetesTest" name="{case.id().split(".", 1)[1]}" result="skipped">'
        f"<skipped message={quoteattr(why)}/></testcase>"
        for case, why in skipped
    )
    pathlib.Path(os.environ["XML_OUTPUT_FILE"]).write_text(
        f'<testsuites><testsuite name="KubernetesTest">{cases}</testsuite></testsuites>'
    )


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    if result.skipped and "XML_OUTPUT_FILE" in os.environ:
        report_skips(result.skipped)
    sys.exit(not result.wasSuccessful())

#!/usr/bin/env python3
"""kubernetes_test.py BATOND: the manifests of deploy/kubernetes, put together as kustomize does: every name in
them is there, their configurations are ones that batond takes, and batond and workers have the privileges
that deploy/kubernetes/README.md says, and no others. Where kubectl is there, it puts them together alike.

Of kustomize it knows what the manifests use, and refuses the rest.
"""

import copy
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

MANIFESTS = pathlib.Path("deploy/kubernetes")
OVERLAYS = {"soft": {"KILL"}, "rdma": {"KILL", "IPC_LOCK"}}  # with batond's capabilities
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
        patched(to, read(directory / patch["path"])[0])
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


class Manifests(unittest.TestCase):
    def each(self):
        for name in OVERLAYS:
            with self.subTest(overlay=name):
                yield name, built(MANIFESTS / "overlays" / name)

    def test_there_is_an_overlay_for_each_that_is_tested(self):
        there = {path.name for path in (MANIFESTS / "overlays").iterdir()}
        self.assertEqual(there, set(OVERLAYS))

    def test_kubectl_puts_them_together_alike(self):
        if not shutil.which("kubectl"):
            self.skipTest("there is no kubectl")
        for name, objects in self.each():
            text = subprocess.run(
                ["kubectl", "kustomize", MANIFESTS / "overlays" / name],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
            (hashed,) = set(re.findall(r"baton-config-[a-z0-9]{10}\b", text))
            theirs = list(yaml.safe_load_all(text.replace(hashed, "baton-config")))
            in_order = lambda some: sorted(some, key=lambda o: (o["kind"], o["metadata"]["name"]))
            self.assertEqual(in_order(theirs), in_order(objects))

    def test_what_they_name_is_there(self):
        for _, objects in self.each():
            namespace = the(objects, "Namespace", "baton")["metadata"]["name"]
            for one in objects:
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
                        config = the(objects, "ConfigMap", volume["configMap"]["name"])
                        self.assertEqual(config["metadata"]["namespace"], namespace)

    def test_batond_takes_the_configuration(self):
        for _, objects in self.each():
            (container,) = pod_of(the(objects, "DaemonSet", "batond"))["containers"]
            option, path = container["args"]
            self.assertEqual(option, "--config")
            mount, file = path.rsplit("/", 1)
            (volume,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == mount]
            self.assertEqual(volume, "config")
            text = the(objects, "ConfigMap", "baton-config")["data"][file]
            self.assertIn("\nstate_dir: \"/run/baton\"\n", text)
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
        for _, objects in self.each():
            daemons = the(objects, "DaemonSet", "batond")
            self.assertEqual(daemons["spec"]["updateStrategy"], {"type": "OnDelete"})
            (container,) = pod_of(daemons)["containers"]
            self.assertNotIn("livenessProbe", container)
            for probe in ("startupProbe", "readinessProbe"):
                self.assertEqual(container[probe]["exec"]["command"][:2], ["baton", "status"])

    def test_batond_has_what_it_needs(self):
        for name, objects in self.each():
            pod = pod_of(the(objects, "DaemonSet", "batond"))
            (container,) = pod["containers"]
            security = container["securityContext"]
            self.assertEqual(set(security["capabilities"]["add"]), OVERLAYS[name])
            self.assertEqual(security["capabilities"]["drop"], ["ALL"])
            self.assertEqual(security["runAsUser"], 0)  # or they would be nobody's
            self.assertIs(security["privileged"], False)
            self.assertIs(security["allowPrivilegeEscalation"], False)
            self.assertIs(security["readOnlyRootFilesystem"], True)
            self.assertIs(pod["hostPID"], True)
            self.assertEqual(pod.get("hostNetwork", False), name == "rdma")
            self.assertNotIn("hostIPC", pod)
            devices = [r for r in container["resources"]["limits"] if r.startswith("rdma/")]
            self.assertEqual(len(devices), 1 if name == "rdma" else 0)
            paths = [v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v]
            self.assertEqual(paths, ["/run/baton"])

    def test_a_worker_has_the_sockets_and_nothing_else(self):
        for _, objects in self.each():
            workers = the(objects, "Deployment", "ledger")
            pod = pod_of(workers)
            for shared in ("hostPID", "hostNetwork", "hostIPC"):
                self.assertIs(pod[shared], False)
            self.assertIs(pod["automountServiceAccountToken"], False)
            (volume,) = pod["volumes"]
            self.assertEqual(volume["hostPath"], {"path": "/run/baton", "type": "Directory"})
            (container,) = pod["containers"]
            security = container["securityContext"]
            self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
            self.assertIs(security["privileged"], False)
            self.assertIs(security["allowPrivilegeEscalation"], False)
            self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
            self.assertFalse([r for r in container["resources"]["limits"] if "/" in r])
            # An heir is there at any time.
            self.assertGreaterEqual(workers["spec"]["replicas"], 2)
            self.assertEqual(workers["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0)

    def test_the_service_takes_the_worker(self):
        for _, objects in self.each():
            pod = pod_of(the(objects, "Deployment", "ledger"))
            text = the(objects, "ConfigMap", "baton-config")["data"]["baton.textproto"]
            uid = pod["securityContext"]["runAsUser"]
            self.assertIn(f"worker_uids: {uid}\n", text)
            (container,) = pod["containers"]
            self.assertEqual(container["args"][:2], ["--socket", "/run/baton/ledger.sock"])
            self.assertIn('name: "ledger"', text)

    def test_the_images_are_those_of_the_recipes(self):
        recipes = pathlib.Path("deploy/container")
        worker = (recipes / "ledger.Containerfile").read_text()
        for _, objects in self.each():
            (container,) = pod_of(the(objects, "DaemonSet", "batond"))["containers"]
            self.assertIn(f"ARG BASE={container['image']}\n", worker)
            (container,) = pod_of(the(objects, "Deployment", "ledger"))["containers"]
            self.assertIn(f"-t {container['image']} ", worker)
            uid = pod_of(the(objects, "Deployment", "ledger"))["securityContext"]["runAsUser"]
            self.assertIn(f"USER {uid}:", worker)


if __name__ == "__main__":
    unittest.main()

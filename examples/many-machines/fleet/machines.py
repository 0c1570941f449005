"""The machines of the fleet: their networks, configurations and processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

# A file system in memory, which disappears with the namespace of mounts.
ROOT = "/run/fleet"
NAME = "www.fleet.test"
NODES = ["n1", "n2", "n3", "n4"]
ADDRESSES = {"client": "10.77.0.1", "lb": "10.77.0.10", "redis": "10.77.0.20", "pebble": "10.77.0.21",
             "app": "10.77.0.30", **{node: f"10.77.0.{11 + index}" for index, node in enumerate(NODES)}}
TOKEN = "demonstration-0123456789abcdef"
KEY = "0123456789abcdef0123456789abcdef"
RATE, BURST = 50, 20
# Maximum time to wait for an event. A machine under load may need long.
PATIENCE = 60


class Failure(Exception):
    """An event that did not happen."""


def wait_for(what, condition):
    """Waits until `condition` returns something true, and returns it."""
    until = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > until:
            raise Failure(f"waited {PATIENCE} s in vain: {what}")
        time.sleep(0.02)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Failure(f"{' '.join(command)}: {done.stdout.strip()}")
    return done.stdout


def write(name, text):
    path = f"{ROOT}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # A server never sees half a file.
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)
    return path


def make_networks():
    """Makes a namespace for each machine, and connects all with a bridge. The bridge and the client are in the
    namespace of this process."""
    run("mount", "-t", "tmpfs", "-o", "mode=755", "fleet", "/run")
    os.makedirs(ROOT)
    hosts = write("hosts", f"127.0.0.1 localhost\n{ADDRESSES['lb']} {NAME}\n")
    run("mount", "--bind", hosts, "/etc/hosts")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "fleet", "type", "bridge")
    run("ip", "address", "add", f"{ADDRESSES['client']}/24", "dev", "fleet")
    run("ip", "link", "set", "fleet", "up")
    for machine, address in ADDRESSES.items():
        if machine == "client":
            continue
        run("ip", "netns", "add", machine)
        run("ip", "link", "add", f"to-{machine}", "type", "veth", "peer", "name", "eth0", "netns", machine)
        run("ip", "link", "set", f"to-{machine}", "master", "fleet", "up")
        for command in (["link", "set", "lo"], ["link", "set", "eth0"]):
            run("ip", "-n", machine, *command, "up")
        run("ip", "-n", machine, "address", "add", f"{address}/24", "dev", "eth0")


def is_listening(machine, port):
    try:
        socket.create_connection((ADDRESSES[machine], port), timeout=1).close()
        return True
    except OSError:
        return False


class Fleet:
    """All machines. Each has at most one process that this program started."""

    def __init__(self, binary, logs):
        self.binary, self.logs = binary, logs
        self.processes, self.starts = {}, {}
        os.makedirs(f"{ROOT}/versions")
        os.symlink(binary, f"{ROOT}/versions/1")

    def open_log(self, name):
        """Opens a log to append to it. The log of an earlier run is emptied. `starts` has its present length."""
        log = open(f"{self.logs}/{name}.log", "a" if name in self.starts else "w", encoding="utf-8")
        self.starts[name] = log.tell()
        return log

    def start(self, machine, *command):
        with self.open_log(machine) as log:
            self.processes[machine] = subprocess.Popen(
                ["ip", "netns", "exec", machine, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, name, start=0):
        """Returns what was logged, from this position on."""
        if name not in self.starts:
            return ""
        with open(f"{self.logs}/{name}.log", encoding="utf-8", errors="replace") as file:
            file.seek(start)
            return file.read()

    def wait_until_listening(self, machine, port):
        def listens():
            process = self.processes[machine]
            if process.poll() is not None:
                raise Failure(f"{process.args[4]} has ended:\n{self.log(machine)[-2000:]}")
            return is_listening(machine, port)

        wait_for(f"{machine} listens on port {port}", listens)

    def start_listening(self, machine, port, *command):
        self.start(machine, *command)
        self.wait_until_listening(machine, port)

    def signal(self, machine, number):
        os.kill(self.processes[machine].pid, number)

    def kill(self, machine):
        """Kills all processes in the network of a machine with SIGKILL."""
        space = os.stat(f"/run/netns/{machine}").st_ino
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{process}/ns/net").st_ino == space:
                    os.kill(int(process), signal.SIGKILL)
            except OSError:
                pass
        self.processes[machine].wait()

    # Redis, Pebble, the application and the load balancer.

    def start_redis(self):
        self.start_listening("redis", 6379, "redis-server", "--bind", ADDRESSES["redis"], "--protected-mode", "no",
                             "--save", "", "--dir", ROOT)

    def start_app(self):
        here = os.path.dirname(os.path.realpath(__file__))
        self.start_listening("app", 8000, sys.executable, f"{here}/app.py", ADDRESSES["app"], "8000")

    def start_pebble(self):
        address = ADDRESSES["pebble"]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
        run("openssl", "req", "-x509", *curve, "-subj", "/CN=fleet", "-keyout", f"{ROOT}/ca.key", "-out",
            f"{ROOT}/ca.pem")
        run("openssl", "req", "-x509", *curve, "-subj", "/CN=pebble", "-CA", f"{ROOT}/ca.pem", "-CAkey",
            f"{ROOT}/ca.key", "-addext", "basicConstraints=critical,CA:FALSE", "-addext",
            f"subjectAltName=IP:{address}", "-keyout", f"{ROOT}/pebble.key", "-out", f"{ROOT}/pebble.pem")
        settings = {"listenAddress": f"{address}:14000", "managementListenAddress": f"{address}:15000",
                    "certificate": f"{ROOT}/pebble.pem", "privateKey": f"{ROOT}/pebble.key", "httpPort": 80,
                    "tlsPort": 443, "ocspResponderURL": "", "externalAccountBindingRequired": False}
        file = write("pebble.json", json.dumps({"pebble": settings}))
        # Each name has the address of the load balancer.
        self.start_listening("pebble", 8055, "pebble-challtestsrv", "-defaultIPv4", ADDRESSES["lb"], "-defaultIPv6",
                             "", "-http01", "", "-https01", "", "-tlsalpn01", "", "-dns01",
                             f"{address}:8053", "-management", f"{address}:8055")
        self.start_listening("pebble", 15000, "env", "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", "pebble",
                             "-config", file, "-strict", "-dnsserver", f"{address}:8053")

    def trust_pebble(self):
        """Writes the root of Pebble's certificates, which each Pebble makes anew."""
        import ssl
        context = ssl.create_default_context(cafile=f"{ROOT}/ca.pem")
        url = f"https://{ADDRESSES['pebble']}:15000/roots/0"
        with urllib.request.urlopen(url, context=context, timeout=PATIENCE) as reply:
            write("root.pem", reply.read().decode())

    def start_balancer(self):
        def servers(port):
            return "".join(f"    server {node} {ADDRESSES[node]}:{port}\n" for node in NODES)

        common = "    option httpchk\n    http-check send meth GET uri /healthz ver HTTP/1.1 hdr Host 10.0.0.1\n"
        file = write("haproxy.cfg", f"""global
    stats socket {ROOT}/haproxy.sock level admin
    maxconn 4000
    log stdout format raw daemon
defaults
    mode tcp
    log global
    option tcplog
    timeout connect 5s
    timeout client 1m
    timeout server 1m
    timeout check 10s
    retries 3
    option redispatch 1
    balance roundrobin
    default-server inter 100ms fall 3 rise 1 check port 9900 send-proxy-v2 on-marked-down shutdown-sessions
frontend plain
    bind {ADDRESSES['lb']}:80
    default_backend plain
frontend tls
    bind {ADDRESSES['lb']}:443
    tcp-request inspect-delay 10s
    tcp-request content accept if {{ req.ssl_hello_type 1 }}
    use_backend http2 if {{ req.ssl_alpn h2 }}
    default_backend http1
backend plain
{common}{servers(80)}backend http1
{common}{servers(443)}backend http2
{common}{servers(443)}""")
        self.start_listening("lb", 443, "haproxy", "-db", "-f", file)

    def servers(self):
        """Returns what HAProxy counts, by backend and node."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(f"{ROOT}/haproxy.sock")
            connection.sendall(b"show stat\n")
            text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        lines = text.lstrip("# ").strip().splitlines()
        rows = [dict(zip(lines[0].split(","), line.split(","))) for line in lines[1:]]
        return {(row["pxname"], row["svname"]): row for row in rows}

    def wait_until_up(self, nodes):
        def are_up():
            found = self.servers()
            return all(found[backend, node]["status"].startswith("UP")
                       for backend in ("plain", "http1", "http2") for node in nodes)

        wait_for(f"HAProxy uses {', '.join(nodes)}", are_up)

    # The nodes.

    def configure(self, node, release):
        address, pebble = ADDRESSES[node], ADDRESSES["pebble"]
        headers = f'set_headers = {{ "X-Node" = "{node}", "X-Release" = "{release}" }}\n'
        return write(f"{node}/site.toml", f"""[server]
admin = "{address}:9900"
admin_token = "{TOKEN}"
store = "redis://{ADDRESSES['redis']}:6379/0"
store_key = "{KEY}"

[[site]]
hosts = "{NAME}"
listen = ["https://{address}:443", "{address}:80"]
redirect_to_https = true
proxy_protocol = true
trusted_proxies = ["10.77.0.0/24"]

[site.tls]
acme = {{ email = "admin@fleet.test", directory = "https://{pebble}:14000/dir", ca = "{ROOT}/ca.pem", state = "{ROOT}/{node}/state" }}

[[site.route]]
path = "/page"
respond = "a page of the fleet"
{headers}
[[site.route]]
path = "/limited"
respond = "admitted"
rate_limit = {{ rate = "{RATE}/s", burst = {BURST}, key = "{{client}}" }}
{headers}
[[site.route]]
path = "/few"
respond = "admitted"
rate_limit = {{ rate = "1/m", burst = {BURST}, key = "{{client}}" }}
{headers}
[[site.route]]
path = "/app"
proxy = "http://{ADDRESSES['app']}:8000"
{headers}""")

    def start_nodes(self, nodes):
        """Starts nodes, and waits until HAProxy uses them."""
        for node in nodes:
            self.set_version(node, 1)
            self.start(node, f"{ROOT}/{node}/forebay", "serve", self.configure(node, 1))
        for node in nodes:
            self.wait_until_listening(node, 9900)
        self.wait_until_up(nodes)

    def set_version(self, node, version):
        """Points the link to a node's program at another version."""
        link = f"{ROOT}/{node}/forebay"
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if os.path.lexists(link + ".new"):
            os.remove(link + ".new")
        os.symlink(f"{ROOT}/versions/{version}", link + ".new")
        os.rename(link + ".new", link)

    def add_version(self):
        """Installs another version: NEW_BINARY, else a copy of this one."""
        shutil.copy(os.environ.get("NEW_BINARY") or self.binary, f"{ROOT}/versions/2")

    def process_of(self, node):
        """Returns the process that serves now. An upgrade may have started it."""
        return self.successors(node)[-1] if self.successors(node) else self.processes[node].pid

    def successors(self, node):
        """Returns the processes that took over, in their order."""
        parts = self.log(node, self.starts[node]).split(" serves from now on")[:-1]
        return [int(part.split()[-1]) for part in parts]

    def control(self, node, *arguments):
        """Runs `forebay ctl`. Returns the exit code and the output."""
        write("token", TOKEN)
        command = [self.binary, "ctl", "--admin", f"{ADDRESSES[node]}:9900", "--token-file", f"{ROOT}/token"]
        done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        return done.returncode, done.stdout

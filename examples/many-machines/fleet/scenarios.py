"""The scenarios, with their expectations."""

import os
import signal
import sys
import time

from .client import STREAMS, Load, ask, context, start_loads, try_ask, wait_until_loaded
from .machines import BURST, NAME, NODES, RATE, ROOT, Failure, Fleet, make_networks, wait_for
from .report import Report

# Loads of at least this many seconds measure the rate limit, too.
LONG = 5


def run(binary, arguments):
    """Runs all scenarios and writes the report. Returns the exit code."""
    report = Report()
    make_networks()
    fleet = Fleet(binary, arguments.logs or ROOT)
    demonstration = Demonstration(fleet, report, arguments)
    try:
        for scenario in (demonstration.certificate, demonstration.sessions, demonstration.node_dies,
                         demonstration.store_dies, demonstration.upgrade, demonstration.change,
                         demonstration.rate_limit):
            title = scenario.__doc__.rstrip(".")
            sys.stderr.write(f"serve: {title}\n")
            report.heading(title)
            scenario()
    except Failure as failure:
        report.expect(str(failure), False)
    panicked = [node for node in NODES if "panicked" in fleet.log(node)]
    report.expect("no node has panicked", not panicked, ", ".join(panicked))
    for node in NODES if report.missed else []:
        sys.stderr.write(f"serve: log of {node}:\n{fleet.log(node)[-3000:]}\n")
    text = report.whole(binary, demonstration.commands)
    if arguments.report:
        with open(arguments.report, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    for missed in report.missed:
        sys.stderr.write(f"serve: FAILS: {missed}\n")
    return 1 if report.missed else 0


class Demonstration:
    """The scenarios, one after another on the same fleet."""

    def __init__(self, fleet, report, arguments):
        self.fleet, self.report = fleet, report
        self.duration, self.connections = arguments.duration, arguments.connections
        self.commands = []

    def under_load(self, events):
        """Runs `events` during the loads. Returns the results of the loads."""
        loads = start_loads(self.fleet, self.connections)
        self.commands = self.commands or [load.shown for load in loads]
        wait_until_loaded(self.fleet, loads)
        time.sleep(self.duration / 2)
        events()
        time.sleep(self.duration / 2)
        results = [load.stop() for load in loads]
        self.report.loads(results)
        return results

    def expect_no_failure(self, results):
        failed = sum(result.failed + result.other for result in results)
        firsts = [result.first_failure for result in results if result.first_failure]
        self.report.expect("no request fails", failed == 0, "; ".join(firsts) or "0 failed")
        self.report.expect("each load has sent requests", all(result.completed for result in results))

    def expect_resumption(self):
        tls, resumed, pairs = context(), 0, [(one, other) for one in NODES for other in NODES]
        for one, other in pairs:
            session = ask(one, "/page", tls).session
            resumed += ask(other, "/page", tls, session).resumed
        self.report.expect("a session of each node resumes on each node", resumed == len(pairs),
                           f"{resumed} of {len(pairs)} pairs")

    def certificate(self):
        """A certificate: one node orders it, all serve it."""
        fleet = self.fleet
        fleet.start_redis()
        fleet.start_pebble()
        fleet.trust_pebble()
        fleet.start_app()
        fleet.start_balancer()
        # Stop Pebble, so that the order waits until Pebble can reach all nodes.
        fleet.signal("pebble", signal.SIGSTOP)
        fleet.start_nodes(NODES)
        fleet.signal("pebble", signal.SIGCONT)
        answers = [wait_for(f"{node} serves the certificate", lambda node=node: try_ask(node, "/page", context()))
                   for node in NODES]
        orders = [node for node in NODES if "a certificate was issued" in fleet.log(node)]
        self.report.expect("one node orders", len(orders) == 1, ", ".join(orders))
        self.report.expect("all nodes serve the same certificate", len({answer.certificate for answer in answers}) == 1)
        # Pebble sends three requests, and HAProxy sends each to a different node.
        answered = [node for node in NODES if int(fleet.servers()["plain", node]["stot"])]
        self.report.expect("other nodes answer the challenge, too", set(answered) - set(orders), ", ".join(answered))

    def sessions(self):
        """TLS sessions resume on any node."""
        def are_shared():
            tls = context()
            session = ask(NODES[0], "/page", tls).session
            return all(ask(node, "/page", tls, session).resumed for node in NODES[1:])

        wait_for("the nodes share the keys of tickets", are_shared)
        self.expect_resumption()
        tls = context()
        session, resumed, nodes = ask("lb", "/page", tls).session, 0, set()
        for _ in range(20):
            answer = ask("lb", "/page", tls, session)
            resumed += answer.resumed
            nodes.add(answer.headers["x-node"])
            session = answer.session or session
        self.report.expect("sessions resume through HAProxy", resumed == 20, f"{resumed} of 20 on {len(nodes)} nodes")

    def node_dies(self):
        """A node dies (kill -9), and returns."""
        fleet, victim, at_risk = self.fleet, NODES[1], {}

        def events():
            # A frozen node keeps its number of connections until it is killed.
            os.kill(fleet.process_of(victim), signal.SIGSTOP)
            before = fleet.servers()
            fleet.kill(victim)
            after = fleet.servers()
            for backend in ("http1", "http2"):
                old, new = before[backend, victim], after[backend, victim]
                at_risk[backend] = int(old["scur"]) + int(new["stot"]) - int(old["stot"])
            wait_for("HAProxy notices", lambda: not fleet.servers()["http1", victim]["status"].startswith("UP"))
            fleet.start_nodes([victim])

        results = self.under_load(events)
        for result, backend, streams in zip(results, ("http1", "http2"), (1, STREAMS)):
            # Each connection of the victim has this many requests under way at most.
            most = at_risk[backend] * streams
            self.report.expect(f"over {result.name}, at most the requests under way on {victim} fail: {most} on "
                               f"{at_risk[backend]} connections", result.failed <= most, f"{result.failed} failed")
            broken = sum(result.failures[kind] for kind in ("connect", "write", "read"))
            self.report.expect("each of them is a connection or a handshake that broke",
                               result.failed == broken and result.other == 0, result.first_failure or "none failed")

    def store_dies(self):
        """Redis dies (kill -9), and returns empty."""
        fleet = self.fleet

        def count(text):
            return [fleet.log(node).count(text) for node in NODES]

        returned = count("it can be reached again")

        def events():
            fleet.kill("redis")
            wait_for("each node notices that Redis is away", lambda: all(
                away > back for away, back in zip(count("this machine serves on"), returned)))
            self.expect_resumption()
            fleet.start_redis()
            wait_for("each node reaches Redis again", lambda: all(
                now > before for now, before in zip(count("it can be reached again"), returned)))

        self.expect_no_failure(self.under_load(events))
        self.expect_resumption()

    def upgrade(self):
        """Another version, node by node (SIGUSR2)."""
        fleet = self.fleet
        fleet.add_version()

        def events():
            for node in NODES:
                old, count = fleet.process_of(node), len(fleet.successors(node))
                fleet.set_version(node, 2)
                os.kill(old, signal.SIGUSR2)
                wait_for(f"another process of {node} serves", lambda node=node, count=count: (
                    len(fleet.successors(node)) > count))
                fleet.wait_until_up([node])

        self.expect_no_failure(self.under_load(events))
        programs = [f"/proc/{fleet.process_of(node)}/exe" for node in NODES]
        # In a chroot, these links may have other paths, because each node has its own mount namespace.
        are_new = all(os.path.samefile(program, f"{ROOT}/versions/2") for program in programs)
        self.report.expect("all nodes run the other version", are_new)
        self.expect_resumption()

    def change(self):
        """Another configuration, node by node (forebay ctl reload)."""
        fleet, codes = self.fleet, []

        def events():
            # One node first gets a configuration with an error.
            with open(fleet.configure(NODES[0], 2), "a", encoding="utf-8") as file:
                file.write("nonsense = \n")
            codes.append(fleet.control(NODES[0], "reload")[0])
            codes.append(ask(NODES[0], "/page", context()).headers["x-release"])
            for node in NODES:
                fleet.configure(node, 2)
                code, text = fleet.control(node, "reload")
                if code:
                    raise Failure(f"{node} refuses the configuration: {text}")

        self.expect_no_failure(self.under_load(events))
        self.report.expect("a configuration with an error is refused, and changes nothing", codes == [2, "1"], codes)
        releases = [ask(node, "/page", context()).headers["x-release"] for node in NODES]
        self.report.expect("all nodes serve the new configuration", set(releases) == {"2"})

    def rate_limit(self):
        """A rate limit that the nodes share."""
        tls, admitted = context(), dict.fromkeys(NODES, 0)

        def is_admitted(node):
            is_open = ask(node, "/few", tls).status == 200
            admitted[node] += is_open
            return is_open

        while is_admitted(NODES[0]):
            pass
        # A node learns of the others' counts within 0.5 s after it has admitted a request. With one request in 0.3 s,
        # the check holds even if a busy machine exchanges counts 6 s late.
        rest = NODES[1:]
        while rest:
            rest = [node for node in rest if is_admitted(node)]
            time.sleep(0.3)
        shown = ", ".join(f"{node}: {count}" for node, count in admitted.items())
        self.report.expect(f"{NODES[0]} admits its burst", admitted[NODES[0]] > BURST, shown)
        self.report.expect("the other nodes then refuse before they have admitted a burst",
                           all(admitted[node] <= BURST for node in NODES[1:]), shown)
        if self.duration >= LONG:
            self.rate_limit_under_load()

    def rate_limit_under_load(self):
        """Compares the requests admitted during a load with the bound in the manual."""
        load = Load(self.fleet, "limited", f"https://{NAME}/limited", "-c", "32", "--think", "5ms", "--allow-failures")
        self.commands.append(load.shown)
        time.sleep(self.duration)
        result = load.stop()
        admitted, refused = result.status.get(200, 0), result.status.get(429, 0)
        wanted = BURST + 1 + RATE * result.duration
        error = len(NODES) * (BURST + 1 + RATE * 0.5)
        self.report.text("\n| time | rate | admitted | one node | error at most | refused | four nodes alone |\n"
                         f"{'|---' * 7}|\n| {result.duration:.1f} s | {RATE}/s, burst {BURST} | {admitted:,} | "
                         f"{wanted:,.0f} | {error:,.0f} | {refused:,} | {len(NODES) * wanted:,.0f} |")
        self.report.expect("the nodes together admit as much as one, within the error",
                           abs(admitted - wanted) <= error, admitted)
        self.report.expect("the limit refuses the rest", refused > 0 and set(result.status) == {200, 429}
                           and result.failed == 0, result.status)

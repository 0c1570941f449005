//! Compares a configuration with the machine.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_conf::{AccessLog, Action, Address, CertificateSource, Listen, Plan, StorePlace, Tls};
use forebay_gateway::{SiteTls, check, check_store, rights_doubts};
use forebay_process::Right;

use super::machine::Finding;
use super::machine::person;
use super::machine::{Machine, space};

/// A certificate should be renewed this number of days before it expires.
const RENEWAL: i64 = 14;
const DAY: i64 = 86_400;
/// Time limit for the resolver.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size in bytes that Forebay requests for the buffer of a UDP socket.
const UDP_BUFFER: u64 = 2 << 20;

/// Examines a configuration file.
pub fn findings(file: &Path, machine: &Machine) -> Vec<Finding> {
    const TOPIC: &str = "configuration";
    let mend = format!("forebay check {}", file.display());
    let plan = match forebay_conf::load(file) {
        Ok(plan) => plan,
        Err(error) => return vec![Finding::error(TOPIC, one_line(&error.to_string()), mend)],
    };
    let mut findings = vec![match check(&plan) {
        Ok(None) => Finding::ok(TOPIC, format!("{} is valid", file.display())),
        Ok(Some(warnings)) => Finding::warning(TOPIC, one_line(&warnings.to_string()), mend),
        Err(error) => Finding::error(TOPIC, one_line(&error.to_string()), mend),
    }];
    findings.extend(certificates(&plan));
    findings.extend(rights(&plan));
    findings.extend(disks(&plan));
    findings.extend(ports(&plan, machine));
    findings.extend(directories(&plan, machine));
    findings.extend(names(&plan));
    findings.extend(connections(&plan));
    findings.extend(udp_buffers(&plan, machine));
    findings.extend(store(&plan));
    findings
}

/// What the users of this plan will be refused, one finding each.
fn rights(plan: &Plan) -> Vec<Finding> {
    let of = |forebay_conf::Finding { message, help, .. }| {
        let message = message.trim_start_matches("WARNING: ").to_owned();
        Finding::warning("rights", message, help)
    };
    rights_doubts(plan).into_iter().map(of).collect()
}

/// The disks of bodies, logs and stored replies.
fn disks(plan: &Plan) -> Vec<Finding> {
    let spool = plan.server.spool_dir.iter().map(|dir| ("large bodies", dir.clone()));
    let logs = plan.log.files().filter_map(|file| match &file.access {
        AccessLog::Path(path) => Some(("the access log", path.parent()?.to_owned())),
        _ => None,
    });
    let cache = plan.server.cache_disk.iter().map(|disk| ("stored replies", disk.dir.clone()));
    let of = |(what, dir): (&str, PathBuf)| {
        let there = dir.ancestors().find(|part| part.exists())?;
        space(what, there, "delete files there, or name a directory on another disk")
    };
    spool.chain(logs).chain(cache).filter_map(of).collect()
}

/// Examines the store that machines share. Returns `None` if the plan has no store.
fn store(plan: &Plan) -> Option<Finding> {
    const TOPIC: &str = "store";
    let place = &plan.server.store.as_deref()?.place;
    Some(match check_store(plan) {
        None => Finding::ok(TOPIC, format!("{place} answers")),
        Some(why) => {
            let mend = match place {
                StorePlace::Redis(server) => format!(
                    "redis-cli -h {} -p {} PING, and look at `store` of [server]",
                    server.host, server.port
                ),
                StorePlace::Directory(path) => format!(
                    "mount it, or: install -d -m 700 -o {} {}",
                    plan.server.user.as_deref().unwrap_or("root"),
                    path.display()
                ),
            };
            Finding::warning(TOPIC, why, mend)
        }
    })
}

/// Returns the first line of an error message, without symbols such as `x` and `!` at its start.
fn one_line(error: &str) -> String {
    let message = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    message.trim_start_matches(['x', '!', '\u{d7}', ' ']).to_owned()
}

fn all_tls(plan: &Plan) -> impl Iterator<Item = &Tls> {
    let of_sites = plan.sites.iter().filter_map(|site| site.tls.as_ref());
    of_sites.chain(plan.relays.iter().filter_map(|relay| relay.tls.as_ref()))
}

fn certificates(plan: &Plan) -> Vec<Finding> {
    const TOPIC: &str = "certificate";
    let mut findings: Vec<_> = all_tls(plan).filter_map(key_mode).collect();
    let loaded = match SiteTls::load(plan, None) {
        Ok(loaded) => loaded,
        Err(error) => {
            let mend = "give the files of [site.tls] to the user who starts Forebay, or mend them";
            findings.push(Finding::error(TOPIC, one_line(&error.to_string()), mend));
            return findings;
        }
    };
    findings.extend(loaded.misnamed(plan).into_iter().map(|found| {
        let message = found.message.trim_start_matches("WARNING: ").to_owned();
        Finding::warning(TOPIC, message, found.help)
    }));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
    let shown = loaded.sites.iter().chain(&loaded.relays).flatten();
    for (tls, of) in all_tls(plan).zip(shown) {
        let CertificateSource::Files { certificate, .. } = &tls.source else { continue };
        let Some((from, until)) = of.certificate().validity() else { continue };
        let (path, left) = (certificate.display(), (until - now).div_euclid(DAY));
        let mend = format!("renew it, or use ACME; then: systemctl reload forebay ({path})");
        findings.push(if until < now {
            Finding::error(TOPIC, format!("{path} expired {} days ago", -left), mend)
        } else if from > now {
            let message = format!("{path} is not valid yet: the clock may be wrong");
            Finding::error(TOPIC, message, "timedatectl set-ntp true")
        } else if left < RENEWAL {
            Finding::warning(TOPIC, format!("{path} expires in {left} days"), mend)
        } else {
            Finding::ok(TOPIC, format!("{path} expires in {left} days"))
        });
    }
    findings
}

/// Returns a warning if all users of this machine may read the private key. Returns `None` if they
/// may not, if the key is not in a file, or if the file's mode cannot be read.
fn key_mode(tls: &Tls) -> Option<Finding> {
    let CertificateSource::Files { key, .. } = &tls.source else { return None };
    let mode = fs::metadata(key).ok()?.mode();
    let path = key.display();
    (mode & 0o004 != 0).then(|| {
        let message = format!("every user of this machine can read {path}");
        Finding::warning("private key", message, format!("chmod 600 {path}"))
    })
}

fn addresses(plan: &Plan) -> Vec<SocketAddr> {
    let of_streams = plan.relays.iter().flat_map(|relay| &relay.listen);
    let all = plan.sites.iter().flat_map(|site| &site.listen).chain(of_streams);
    let address = |listen: &Listen| match listen.socket() {
        Listen::Tcp(address) | Listen::Udp(address) | Listen::Http3(address) => Some(*address),
        _ => None,
    };
    let mut addresses: Vec<_> = all.chain(&plan.server.admin).filter_map(address).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

fn ports(plan: &Plan, machine: &Machine) -> Vec<Finding> {
    const TOPIC: &str = "port";
    let lowest = machine.number("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or(1024);
    let (first, last) = machine.client_ports().unwrap_or((1, 0));
    let reserved = machine.read("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let may_bind = may_bind(machine);
    let of = |address: SocketAddr| {
        let port = u64::from(address.port());
        if port == 0 {
            return None;
        }
        if port < lowest && !may_bind {
            let message = format!("this user may not listen on {address} (ports below {lowest})");
            let mend = "run it as root with `user` in [server], or: setcap \
                        cap_net_bind_service=+ep $(command -v forebay)";
            return Some(Finding::error(TOPIC, message, mend));
        }
        let is_reserved = || reserved.split(',').any(|part| is_within(part, port));
        if (first..=last).contains(&port) && !is_reserved() {
            let message = format!(
                "a connection of another program may use {address} when Forebay starts (client \
                 ports are {first} to {last})"
            );
            let mend = format!("sysctl -w net.ipv4.ip_local_reserved_ports={port}");
            return Some(Finding::warning(TOPIC, message, mend));
        }
        Some(Finding::ok(TOPIC, format!("{address} is permitted")))
    };
    addresses(plan).into_iter().filter_map(of).collect()
}

/// Returns true if `part`, an item of `ip_local_reserved_ports`, contains the port. An item is a
/// port or a range such as `8000-8080`.
fn is_within(part: &str, port: u64) -> bool {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&port))
}

/// Returns true if this process has the capability to listen on low ports.
fn may_bind(machine: &Machine) -> bool {
    const BIND: u64 = 1 << 10;
    let status = machine.read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.map_or_else(|| rustix::process::geteuid().is_root(), |bits| bits & BIND != 0)
}

fn directories(plan: &Plan, machine: &Machine) -> Vec<Finding> {
    const TOPIC: &str = "directory";
    let user = plan.server.user.as_deref().and_then(|name| {
        let text = |path| machine.read(path).unwrap_or_default();
        person(name, &text("/etc/passwd"), &text("/etc/group"))
    });
    let mut roots: Vec<&PathBuf> = Vec::new();
    for route in plan.sites.iter().flat_map(|site| &site.routes) {
        match &route.action {
            Action::Files(files) if !roots.contains(&&files.root) => roots.push(&files.root),
            _ => {}
        }
    }
    let of = |root: &PathBuf| {
        let path = root.display();
        if let Some(refused) = user.as_ref().and_then(|user| user.refusal(root, Right::Read)) {
            return Finding::error(TOPIC, refused.message, refused.command);
        }
        let mode = fs::metadata(root).map_or(0, |metadata| metadata.mode());
        if mode & 0o002 != 0 && mode & 0o1000 == 0 {
            let message = format!("every user of this machine can change the files in {path}");
            return Finding::warning(TOPIC, message, format!("chmod o-w {path}"));
        }
        Finding::ok(TOPIC, format!("{path} is readable"))
    };
    roots.into_iter().map(of).collect()
}

/// Resolves the host name of each backend, and returns a finding for each name.
fn names(plan: &Plan) -> Vec<Finding> {
    const TOPIC: &str = "names";
    let actions = plan.sites.iter().flat_map(|site| &site.routes).map(|route| &route.action);
    let of_sites = actions.filter_map(Action::upstream).flat_map(|upstream| upstream.addresses());
    let of_streams = plan.relays.iter().flat_map(|relay| relay.upstream.addresses());
    let mut hosts: Vec<String> = of_sites
        .chain(of_streams)
        .filter_map(|address| match address {
            Address::Tcp(host) if host.parse::<SocketAddr>().is_err() => Some(host.clone()),
            _ => None,
        })
        .collect();
    hosts.sort();
    hosts.dedup();
    let of = |host: String| {
        let (sender, outcome) = mpsc::channel();
        let name = host.clone();
        // Resolve the name on another thread, because the system's resolver takes no time limit.
        std::thread::spawn(move || sender.send(name.to_socket_addrs().map(|mut all| all.next())));
        match outcome.recv_timeout(PATIENCE) {
            Ok(Ok(Some(address))) => Finding::ok(TOPIC, format!("{host} is {address}")),
            other => {
                let why = match other {
                    Ok(Err(error)) => error.to_string(),
                    Ok(Ok(_)) => "it has no address".to_owned(),
                    Err(_) => format!("no answer within {PATIENCE:?}"),
                };
                let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
                let message = format!("the backend {host} has no address: {why}");
                Finding::warning(TOPIC, message, format!("getent hosts {name}"))
            }
        }
    };
    hosts.into_iter().map(of).collect()
}

/// Returns a warning if the limit on connections is above the limit on descriptors, otherwise
/// `None`.
fn connections(plan: &Plan) -> Option<Finding> {
    let wanted = plan.server.limits.connections as u64;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum?;
    (wanted > most).then(|| {
        Finding::warning(
            "open files",
            format!("`connections` allows {wanted} clients, but Forebay may open {most} files"),
            format!("set LimitNOFILE={} in the unit of systemd", 2 * wanted + 64),
        )
    })
}

fn udp_buffers(plan: &Plan, machine: &Machine) -> Option<Finding> {
    const TOPIC: &str = "UDP buffers";
    let has_http3 = plan.sites.iter().flat_map(|site| &site.listen).any(Listen::is_http3);
    let most = machine.number("/proc/sys/net/core/rmem_max").filter(|_| has_http3)?;
    Some(if most < UDP_BUFFER {
        let message = format!("{most} bytes (net.core.rmem_max): a burst of HTTP/3 loses packets");
        let mend = "sysctl -w net.core.rmem_max=2097152 net.core.wmem_max=2097152";
        Finding::warning(TOPIC, message, mend)
    } else {
        Finding::ok(TOPIC, format!("{most} bytes"))
    })
}

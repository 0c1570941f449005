//! The machine: limits, kernel, control group, time and names.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_net::sys::datagrams::{Routing, attach_reuseport_filter};
use forebay_process::Person;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, socket};
use rustix::process::{Resource, getrlimit};

/// Descriptors that Forebay itself needs. Each client needs up to two further ones.
const OWN_DESCRIPTORS: u64 = 64;
/// Limits on descriptors below which Forebay hardly serves, or serves few clients.
const FEWEST_DESCRIPTORS: u64 = 256;
const FEW_DESCRIPTORS: u64 = 4096;
/// Shortest queue of a listener that holds a burst of clients.
const QUEUE: u64 = 1024;
/// Fewest ports for connections to backends. A closed connection keeps its port for a minute.
const PORTS: u64 = 10_000;
/// Memory limits: below the first, Forebay hardly serves. Below the second, a burst may end Forebay.
const LEAST_MEMORY: u64 = 64 << 20;
const LITTLE_MEMORY: u64 = 256 << 20;
/// Least free space for bodies and logs.
const SPACE: u64 = 256 << 20;
/// Oldest kernel with everything that Forebay uses. `cgroup.kill` is the newest part.
const KERNEL: (u32, u32) = (5, 14);
/// A date before which no version of Forebay existed, in seconds (1 November 2025).
const EARLIEST: u64 = 1_761_955_200;

/// The machine to examine: this machine, or a copy of another machine's files below `root`.
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the text of a file such as `/proc/version`, without white space at its end. Returns
    /// `None` if the file cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let path = self.root.join(path.trim_start_matches('/'));
        fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
    }

    /// Returns the number in a file. Returns `None` if the file cannot be read, or contains no
    /// number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Returns the range of ports that the kernel chooses from for outgoing connections. Returns
    /// `None` if the range cannot be read.
    pub fn client_ports(&self) -> Option<(u64, u64)> {
        let text = self.read("/proc/sys/net/ipv4/ip_local_port_range")?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![open_files()];
        findings.extend(self.processes());
        findings.push(self.queue());
        findings.extend(self.handshakes());
        findings.push(accept_filter());
        findings.extend(self.ports());
        findings.extend(self.used_ports());
        findings.extend(self.memory());
        findings.extend(self.cpu());
        findings.push(self.kernel());
        findings.push(udp_filter());
        findings.push(self.proc());
        findings.push(clock());
        findings.push(self.names());
        let mend = "delete files there, or set `spool_dir` in [server]";
        findings.extend(space("large bodies", &std::env::temp_dir(), mend));
        findings
    }

    fn processes(&self) -> Option<Finding> {
        const TOPIC: &str = "processes";
        // The kernel does not apply this limit (RLIMIT_NPROC) to root.
        let most = getrlimit(Resource::Nproc).maximum.filter(|_| !is_root());
        let threads = self.number("/proc/sys/kernel/threads-max");
        let most = [most, threads].into_iter().flatten().min()?;
        Some(if most < 512 {
            let message = format!("at most {most} processes and threads of this user");
            Finding::warning(TOPIC, message, "set LimitNPROC=infinity in the unit of systemd")
        } else {
            Finding::ok(TOPIC, format!("up to {most} processes and threads"))
        })
    }

    fn queue(&self) -> Finding {
        const TOPIC: &str = "queue of listeners";
        match self.number("/proc/sys/net/core/somaxconn") {
            Some(most) if most < QUEUE => Finding::warning(
                TOPIC,
                format!("{most} clients may wait (net.core.somaxconn); more are refused"),
                "sysctl -w net.core.somaxconn=4096",
            ),
            Some(most) => Finding::ok(TOPIC, format!("{most} clients may wait")),
            None => Finding::ok(TOPIC, "the kernel's default (net.core.somaxconn is hidden)"),
        }
    }

    /// Checks the queue of clients whose handshake is not complete.
    fn handshakes(&self) -> Option<Finding> {
        const TOPIC: &str = "queue of handshakes";
        let most = self.number("/proc/sys/net/ipv4/tcp_max_syn_backlog")?;
        let has_cookies = self.number("/proc/sys/net/ipv4/tcp_syncookies") != Some(0);
        Some(if has_cookies {
            Finding::ok(TOPIC, format!("{most}, and no limit by SYN cookies"))
        } else if most < QUEUE {
            let message = format!("{most} (net.ipv4.tcp_max_syn_backlog), without SYN cookies");
            Finding::warning(TOPIC, message, "sysctl -w net.ipv4.tcp_syncookies=1")
        } else {
            Finding::ok(TOPIC, format!("{most}, without SYN cookies"))
        })
    }

    fn ports(&self) -> Option<Finding> {
        const TOPIC: &str = "ports of clients";
        let (first, last) = self.client_ports()?;
        let count = (last + 1).saturating_sub(first);
        Some(if count < PORTS {
            let message =
                format!("{count} ports for connections to one backend, {first} to {last}");
            let mend = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
            Finding::warning(TOPIC, message, mend)
        } else {
            Finding::ok(TOPIC, format!("{count} for connections to one backend"))
        })
    }

    /// Checks that a new connection may take the port of one that was closed less than a minute ago.
    fn used_ports(&self) -> Option<Finding> {
        const TOPIC: &str = "ports of closed connections";
        let mend = "sysctl -w net.ipv4.tcp_tw_reuse=1";
        Some(match self.number("/proc/sys/net/ipv4/tcp_tw_reuse")? {
            0 => Finding::warning(TOPIC, "in use for a minute (net.ipv4.tcp_tw_reuse = 0)", mend),
            2 => Finding::ok(TOPIC, "used again on this machine, after a minute to others"),
            _ => Finding::ok(TOPIC, "used again after a second"),
        })
    }

    /// Returns the content of `file`, such as `memory.max`, in this process's control group and in
    /// each group above it. Leaves out groups without this file.
    fn of_groups(&self, file: &str) -> Vec<String> {
        let text = self.read("/proc/self/cgroup").unwrap_or_default();
        let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
            return Vec::new();
        };
        let groups = Path::new(own).ancestors();
        groups
            .filter_map(|group| self.read(&format!("/sys/fs/cgroup{}/{file}", group.display())))
            .collect()
    }

    fn memory(&self) -> Option<Finding> {
        const TOPIC: &str = "memory";
        let limits = self.of_groups("memory.max");
        let group = limits.iter().filter_map(|limit| limit.parse::<u64>().ok()).min();
        let machine = self.read("/proc/meminfo").and_then(|text| total_memory(&text));
        let most = [group, machine].into_iter().flatten().min()?;
        let megabytes = most >> 20;
        let mend = "systemctl set-property forebay.service MemoryMax=1G";
        Some(if most < LEAST_MEMORY {
            let message = format!("{megabytes} MiB: the kernel may end Forebay at any time");
            Finding::error(TOPIC, message, mend)
        } else if most < LITTLE_MEMORY {
            let message = format!("{megabytes} MiB: a burst of clients may need more");
            Finding::warning(TOPIC, message, mend)
        } else {
            Finding::ok(TOPIC, format!("{megabytes} MiB"))
        })
    }

    fn cpu(&self) -> Option<Finding> {
        const TOPIC: &str = "processors";
        let share = |text: &String| {
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        };
        let quota = self.of_groups("cpu.max").iter().filter_map(share).reduce(f64::min);
        let Some(quota) = quota else {
            let count = std::thread::available_parallelism().ok()?;
            return Some(Finding::ok(TOPIC, format!("{count}, without a quota")));
        };
        Some(if quota < 1.0 {
            let message =
                format!("a quota of {:.0} % of one processor; requests wait for it", 100.0 * quota);
            let mend = "systemctl set-property forebay.service CPUQuota=";
            Finding::warning(TOPIC, message, mend)
        } else {
            Finding::ok(TOPIC, format!("a quota of {quota:.1} processors"))
        })
    }

    fn kernel(&self) -> Finding {
        const TOPIC: &str = "kernel";
        let release = self.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
        let Some(version) = numbers.next().zip(numbers.next()) else {
            return Finding::ok(TOPIC, "unknown version");
        };
        if version >= KERNEL {
            return Finding::ok(TOPIC, format!("Linux {release}"));
        }
        Finding::warning(
            TOPIC,
            format!(
                "Linux {release} is older than {}.{}: the processes of a control group are ended \
                 one after the other",
                KERNEL.0, KERNEL.1
            ),
            "install a newer kernel",
        )
    }

    /// Checks that /proc is mounted, because Forebay starts helper processes with the program
    /// /proc/self/exe.
    fn proc(&self) -> Finding {
        const TOPIC: &str = "/proc";
        if self.root.join("proc/self").exists() || self.root != Path::new("/") {
            return Finding::ok(TOPIC, "mounted");
        }
        Finding::error(
            TOPIC,
            "not mounted: Forebay cannot start applications and scripts",
            "mount -t proc proc /proc",
        )
    }

    fn names(&self) -> Finding {
        const TOPIC: &str = "names";
        let text = self.read("/etc/resolv.conf").unwrap_or_default();
        let server = |line: &str| Some(line.strip_prefix("nameserver")?.trim().to_owned());
        let servers: Vec<_> = text.lines().filter_map(server).collect();
        if servers.is_empty() {
            let mend = "echo 'nameserver 192.0.2.1' >> /etc/resolv.conf (your DNS server), or set \
                        `dns_servers` in [server]";
            let message = "/etc/resolv.conf has no nameserver: only names of /etc/hosts have \
                           addresses";
            return Finding::warning(TOPIC, message, mend);
        }
        Finding::ok(TOPIC, format!("resolved by {}", servers.join(", ")))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn open_files() -> Finding {
    const TOPIC: &str = "open files";
    // Only the hard limit counts, because Forebay raises its soft limit to the hard limit.
    let Some(most) = getrlimit(Resource::Nofile).maximum else {
        return Finding::ok(TOPIC, "no limit");
    };
    let clients = most.saturating_sub(OWN_DESCRIPTORS) / 2;
    let message = format!("at most {most} (hard limit), enough for {clients} clients");
    let mend = "set LimitNOFILE=65536 in the unit of systemd, or run: ulimit -Hn 65536";
    if most < FEWEST_DESCRIPTORS {
        Finding::error(TOPIC, message, mend)
    } else if most < FEW_DESCRIPTORS {
        Finding::warning(TOPIC, message, mend)
    } else {
        Finding::ok(TOPIC, message)
    }
}

/// Says why Forebay leaves out what Apache sets by `AcceptFilter`.
fn accept_filter() -> Finding {
    Finding::ok(
        "accept filter",
        "not needed (TCP_DEFER_ACCEPT): a client that sends nothing holds no process or thread, \
         and [server.timeouts] ends it",
    )
}

/// Checks that this process may attach the BPF filter that HTTP/3 needs.
fn udp_filter() -> Finding {
    const TOPIC: &str = "UDP filter";
    let attach = || {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        set_socket_reuseport(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let routing = Routing { sockets: 1, count: 1, shift: 0, tag: 0 };
        attach_reuseport_filter(socket.as_fd(), routing, None)
    };
    match attach() {
        Ok(()) => Finding::ok(TOPIC, "available for HTTP/3"),
        Err(error) => Finding::warning(
            TOPIC,
            format!("HTTP/3 connections end when the client's address changes: {error}"),
            "allow SO_ATTACH_REUSEPORT_CBPF in the sandbox of this process",
        ),
    }
}

fn clock() -> Finding {
    const TOPIC: &str = "clock";
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    if now < EARLIEST {
        let message = "the clock is before November 2025: certificates are refused";
        return Finding::error(TOPIC, message, "timedatectl set-ntp true");
    }
    Finding::ok(TOPIC, "plausible")
}

/// Checks the free space for `what` in a directory. Returns `None` if the free space is unknown.
pub fn space(what: &str, dir: &Path, mend: &str) -> Option<Finding> {
    const TOPIC: &str = "disk";
    let found = statvfs(dir).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let message = format!("{} MiB free for {what} in {}", free >> 20, dir.display());
    let is_read_only = found.f_flag.contains(StatVfsMountFlags::RDONLY);
    Some(if is_read_only {
        Finding::error(TOPIC, format!("{} is on a read-only disk", dir.display()), mend)
    } else if free < SPACE {
        Finding::warning(TOPIC, message, mend)
    } else {
        Finding::ok(TOPIC, message)
    })
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Severity of a finding. The number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok = 0,
    /// Forebay works, but is limited.
    Warning = 1,
    /// Forebay does not start, or clients are refused.
    Error = 2,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A fact about the machine or the site.
pub struct Finding {
    pub level: Level,
    pub topic: &'static str,
    pub message: String,
    /// A command, or a change of the configuration, that removes the problem.
    pub mend: Option<String>,
}

impl Finding {
    pub fn ok(topic: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, topic, message: message.into(), mend: None }
    }

    pub fn warning(
        topic: &'static str,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, topic, message: message.into(), mend: Some(mend.into()) }
    }

    pub fn error(topic: &'static str, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Error, topic, message: message.into(), mend: Some(mend.into()) }
    }
}

/// Returns the user with this name, with all its groups. `passwd` and `group` are the texts of these
/// files in /etc. Returns `None` if there is no such user, or if an ID in the user's line is not a
/// number.
pub fn person(name: &str, passwd: &str, group: &str) -> Option<Person> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let of_user = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
    let id = of_user.get(2)?.parse().ok()?;
    let mut groups = vec![of_user.get(3)?.parse().ok()?];
    for line in group.lines() {
        let fields: Vec<_> = line.split(':').collect();
        let members = fields.get(3).is_some_and(|all| all.split(',').any(|member| member == name));
        groups.extend(fields.get(2).and_then(|id| id.parse::<u32>().ok()).filter(|_| members));
    }
    Some(Person::new(name, id, groups))
}

//! An application as typed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::proxy::HostField;
use super::shape::{At, OneOrMany, Size, Table, Time};

/// An application that Forebay starts and looks after.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["kind"], "oneOf" = by_form()))]
pub struct App {
    /// What it is.
    pub kind: Option<At<Kind>>,
    /// The directory: of the scripts (cgi-bin, perl-cgi, python-cgi), of the modules (wsgi), of the
    /// ASP.NET application (mono), else the working directory. Default: that of this file.
    pub dir: Option<At<String>>,
    /// How each script is run. perl-cgi: registry (default), registry-prefork, perlrun, fork or
    /// cgi. python-cgi: fresh (default) or fork.
    #[schemars(with = "Option<ModeOfAnyKind>")]
    pub mode: Option<At<String>>,
    /// cgi-bin: how its Perl scripts are run, as `mode` of perl-cgi. Default: registry.
    pub perl_mode: Option<At<String>>,
    /// cgi-bin: how its Python scripts are run, as `mode` of python-cgi. Default: fresh.
    pub python_mode: Option<At<String>>,
    /// cgi-bin, perl-cgi, python-cgi: processes at once for scripts that no worker runs, such as
    /// those of a shell; further requests wait. Default: 64.
    pub max_processes: Option<At<usize>>,
    /// psgi: the file whose last value is the application.
    pub file: Option<At<String>>,
    /// wsgi: "module:callable", or "module:factory()" for what a function returns.
    pub module: Option<At<String>>,
    /// python-cgi, cgi-bin, wsgi: the interpreter, such as that of a virtual environment. Default:
    /// that of the virtual environment that the #! lines of all Python scripts name, else python3
    /// from PATH.
    pub python: Option<At<String>>,
    /// php: the directory of the scripts. command that speaks fastcgi, scgi or uwsgi: what
    /// SCRIPT_FILENAME and DOCUMENT_ROOT begin with; without it the path is PATH_INFO.
    pub root: Option<At<String>>,
    /// php, and command that speaks fastcgi: ends of the names of files that may be run, such as
    /// [".php", ".phtml"]; for a command also "*", whatever is below `root`. Default: [".php"], for
    /// a command that is not PHP's "*".
    pub scripts: Option<At<OneOrMany<String>>>,
    /// command: program and arguments, with {dir}, {socket} and {port} filled in. It stays in the
    /// foreground.
    pub run: Option<At<Vec<At<String>>>>,
    /// command: the protocol it speaks; h2c is HTTP/2 by prior knowledge.
    pub speaks: Option<At<AppProtocol>>,
    /// command: who opens the socket. Default: the program, at the {socket} or {port} in `run`.
    pub listen: Option<At<Listening>>,
    /// command that speaks ajp: what it asks of whoever passes requests on, as `secret` of Tomcat's
    /// connector. Default: nothing.
    pub secret: Option<At<String>>,
    /// command that speaks http or h2c: the Host that it is told, the client's or 127.0.0.1 with its port
    /// (localhost, where it listens on a Unix socket). Default: "client".
    pub host: Option<At<HostField>>,
    /// command that speaks http or h2c: the beginning of paths that it is not told, such as "/shop"; its
    /// redirections and cookie paths get it in front. Default: none.
    pub strip_prefix: Option<At<String>>,
    /// command that speaks http or h2c: sends a client to the same of several processes each time, by a
    /// cookie, while that process lives and has a connection left. Default: no.
    pub sticky: Option<At<Table<ProcessSticky>>>,
    /// php: settings as in php.ini, such as { upload_max_filesize = "64M" }. Default: none.
    pub ini: BTreeMap<String, At<String>>,
    /// php: the version, such as "8.2". Default: the newest that is installed.
    pub version: Option<At<String>>,
    /// mono: requests that each process runs at once. Default: 16.
    pub threads: Option<At<usize>>,
    /// mono: the application's own path, such as "/shop" where its route says path = "/shop/*".
    /// Default: "/".
    pub virtual_path: Option<At<String>>,
    /// command: connections to each process at once. Default: 100 for http, else 1.
    pub connections: Option<At<usize>>,
    /// command, php, mono: how long a process may take to listen. Default: "30s".
    pub start_timeout: Option<Time>,
    /// command, php, mono: from SIGTERM to SIGKILL. Default: "10s".
    pub stop_timeout: Option<Time>,

    /// How many processes: a number, or { min, max } to start on demand. Default: 4; for a command,
    /// which may have workers of its own, and for mono, which has threads, 1. php: how many children php-fpm has.
    pub workers: Option<At<Workers>>,
    /// Requests a worker serves before it is replaced. Default: no limit.
    pub max_requests: Option<At<u64>>,
    /// How old a worker gets before it is replaced, a tenth less at random. Default: no limit.
    pub max_age: Option<Time>,
    /// Files and directories, relative to `dir`: when one changes the workers are replaced one by
    /// one. Looked at once a second. Default: none.
    pub watch: Option<At<OneOrMany<String>>>,
    /// From the request's head to the last byte of the reply; of a command: how long it may be
    /// silent within a request. Default: "60s".
    pub request_timeout: Option<Time>,
    /// Requests that may wait for a worker. Default: 1024.
    pub queue: Option<At<usize>>,
    /// How long one may wait. Default: "10s".
    pub queue_timeout: Option<Time>,
    /// Variables added to the workers' environment. Those of a request, such as DOCUMENT_ROOT and
    /// REMOTE_USER, stand in place of what requests say.
    pub env: BTreeMap<String, At<String>>,
    /// perl-cgi, python-cgi, cgi-bin, psgi, wsgi: directories where Perl (@INC) and Python (sys.path)
    /// look for modules first. Default: none.
    pub lib: Option<At<OneOrMany<String>>>,
    /// The user the workers run as, with its groups; needs root. Default: the one Forebay runs as.
    pub user: Option<At<String>>,
    /// The group the workers run as, and the only one; needs root. Default: the groups of `user`.
    pub group: Option<At<String>>,
    /// What each process may use at the most. Default: what Forebay may.
    pub limits: Table<Limits>,
    /// What all processes of the application may use together, by a control group of theirs
    /// (Linux, version 2). Where Forebay may not make one, log and status say so. Default: no
    /// limit.
    pub cgroup: Table<Cgroup>,
    /// How long a worker above `min` may be idle before it is stopped; php: only with `min` 0.
    /// Default: "60s".
    pub idle_timeout: Option<Time>,
    /// Resident memory above which a worker is replaced. Default: no limit.
    pub max_memory: Option<Size>,
    /// CPU time after which a worker is replaced, with that of processes that it has started, a tenth
    /// less at random. Default: no limit.
    pub max_cpu: Option<Time>,
    /// Bytes of one reply, its head included; more end it, and the worker. Not for a command that
    /// speaks http or ajp. Default: no limit.
    pub max_output: Option<Size>,
}

/// What an application is.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Unchanged CGI scripts in several languages: what is written in Perl or Python is kept warm,
    /// anything else has a process for each request.
    CgiBin,
    /// Unchanged Perl CGI scripts.
    PerlCgi,
    /// Unchanged Python CGI scripts.
    PythonCgi,
    /// A PSGI application.
    Psgi,
    /// A WSGI application.
    Wsgi,
    /// PHP scripts.
    Php,
    /// An ASP.NET application on Mono.
    Mono,
    /// A program that listens by itself.
    Command,
}

/// What an application can be, for the schema alone.
struct Form {
    kind: &'static str,
    /// The protocols of a program.
    speaks: &'static [&'static str],
    /// Keys that it must have.
    must: &'static [&'static str],
    /// Keys of few kinds that it may have.
    may: &'static [&'static str],
    modes: &'static [&'static str],
}

const FORM: Form =
    Form { kind: "", speaks: &[], must: &[], may: &["lib", "max_output"], modes: &[] };

const FORMS: [Form; 11] = [
    Form {
        kind: "cgi-bin",
        must: &["dir"],
        may: &["perl_mode", "python_mode", "max_processes", "python", "lib", "max_output"],
        ..FORM
    },
    Form {
        kind: "perl-cgi",
        must: &["dir"],
        may: &["mode", "max_processes", "lib", "max_output"],
        modes: &["registry", "registry-prefork", "perlrun", "fork", "cgi"],
        ..FORM
    },
    Form {
        kind: "python-cgi",
        must: &["dir"],
        may: &["mode", "max_processes", "python", "lib", "max_output"],
        modes: &["fresh", "fork"],
        ..FORM
    },
    Form { kind: "psgi", must: &["file"], ..FORM },
    Form { kind: "wsgi", must: &["module"], may: &["python", "lib", "max_output"], ..FORM },
    Form {
        kind: "php",
        must: &["root"],
        may: &["scripts", "ini", "version", "start_timeout", "stop_timeout", "max_output"],
        ..FORM
    },
    Form {
        kind: "mono",
        must: &["dir"],
        may: &["threads", "virtual_path", "start_timeout", "stop_timeout", "max_output"],
        ..FORM
    },
    Form {
        kind: "command",
        speaks: &["http", "h2c"],
        must: &["run", "speaks"],
        may: &[
            "listen",
            "host",
            "strip_prefix",
            "sticky",
            "connections",
            "start_timeout",
            "stop_timeout",
        ],
        ..FORM
    },
    Form {
        kind: "command",
        speaks: &["fastcgi"],
        must: &["run", "speaks"],
        may: &[
            "root",
            "scripts",
            "listen",
            "connections",
            "start_timeout",
            "stop_timeout",
            "max_output",
        ],
        ..FORM
    },
    Form {
        kind: "command",
        speaks: &["scgi", "uwsgi"],
        must: &["run", "speaks"],
        may: &["root", "listen", "connections", "start_timeout", "stop_timeout", "max_output"],
        ..FORM
    },
    Form {
        kind: "command",
        speaks: &["ajp"],
        must: &["run", "speaks"],
        may: &["secret", "listen", "connections", "start_timeout", "stop_timeout"],
        ..FORM
    },
];

/// One schema for each form, which has no key of another.
fn by_form() -> Vec<Schema> {
    let keys = || FORMS.iter().flat_map(|form| form.must.iter().chain(form.may));
    let of_form = |form: &Form| {
        let is_own = |key: &str| form.must.contains(&key) || form.may.contains(&key);
        let mut properties = serde_json::Map::new();
        // The directory is a working directory for those that have no scripts in it.
        for key in keys().filter(|key| **key != "dir" && !is_own(key)) {
            properties.insert((*key).to_owned(), false.into());
        }
        properties.insert("kind".into(), json_schema!({ "const": form.kind }).to_value());
        for (key, values) in [("speaks", form.speaks), ("mode", form.modes)] {
            if !values.is_empty() {
                properties.insert(key.into(), json_schema!({ "enum": values }).to_value());
            }
        }
        let mut schema = json_schema!({ "properties": properties, "required": form.must });
        if form.kind == "command" && form.may.contains(&"scripts") {
            schema.insert("dependentRequired".into(), serde_json::json!({ "scripts": ["root"] }));
        }
        schema
    };
    FORMS.iter().map(of_form).collect()
}

/// How each script is run: the schema alone has the modes of all kinds.
struct ModeOfAnyKind;

impl JsonSchema for ModeOfAnyKind {
    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mode = |name: &str, what: &str| json_schema!({ "const": name, "description": what });
        json_schema!({
            "description": "How each script is run.",
            "oneOf": [
                mode("registry", "perl-cgi: compiled once, run many times in one process."),
                mode("registry-prefork", "perl-cgi: as registry, in the directory of the script."),
                mode("perlrun", "perl-cgi: compiled for each request in a process that stays."),
                mode("fork", "Each request in a fork of its own."),
                mode("cgi", "perl-cgi: a process for each request."),
                mode("fresh", "python-cgi: a fresh module for each request in a process that stays."),
            ],
        })
    }
}

/// Sends a client to the same process each time.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["cookie"]))]
pub struct ProcessSticky {
    /// The name of the cookie, which Forebay makes.
    pub cookie: Option<At<String>>,
}

/// The protocol a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AppProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 without TLS.
    H2c,
    /// FastCGI.
    Fastcgi,
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi,
    /// AJP 1.3.
    Ajp,
}

/// Who opens the socket of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Listening {
    /// The program opens the Unix socket {socket}.
    Socket,
    /// The program opens the TCP port {port} of 127.0.0.1.
    Port,
    /// Forebay opens a Unix socket and passes it on as descriptor 3, told by LISTEN_FDS (systemd)
    /// and SERVER_STARTER_PORT (Server::Starter).
    Inherit,
    /// As inherit, with a TCP port of 127.0.0.1.
    InheritPort,
    /// Forebay opens a Unix socket and passes it on as descriptor 0, as FastCGI has it.
    Stdin,
}

/// What each process may use at the most.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Open files.
    pub open_files: Option<At<u64>>,
    /// Address space; a process that asks for more is refused it.
    pub memory: Option<Size>,
    /// CPU time; a process that has used it up is killed.
    pub cpu_time: Option<Time>,
    /// Processes and threads of the worker's user, all of them counted. Does not bind root.
    pub processes: Option<At<u64>>,
    /// The largest core dump; 0: none.
    pub core: Option<Size>,
}

/// What a control group may use at the most.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cgroup {
    /// memory.max: the kernel kills processes when they use more.
    pub memory: Option<Size>,
    /// cpu.max, in percent of one core: 150 is one and a half.
    pub cpu_percent: Option<At<u64>>,
    /// pids.max: processes and threads.
    pub processes: Option<At<u64>>,
}

/// How many processes.
#[derive(Clone, Copy, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Workers {
    /// Always this many.
    Count(usize),
    /// Started on demand, stopped when idle.
    Range(Range),
}

/// Started on demand, stopped when idle.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["max"]))]
pub struct Range {
    /// Kept running. Default: 0.
    pub min: Option<usize>,
    /// Never more than this.
    pub max: Option<usize>,
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = Workers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number such as 4, or a table such as { min = 0, max = 8 }")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Workers, E> {
                usize::try_from(number)
                    .map(Workers::Count)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Workers, A::Error> {
                Range::deserialize(de::value::MapAccessDeserializer::new(map)).map(Workers::Range)
            }
        }
        deserializer.deserialize_any(Count)
    }
}

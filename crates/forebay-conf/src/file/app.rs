//! The keys of `[app.NAME]`, as the user types them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use forebay_conf_derive::{Choice, Table};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::json;
use toml::de::DeValue;

use super::mod_perl::{PerlAuth, Phases};
use crate::key::{At, Cx, Form, Node, OneOrMany, Resolution, Size, Time, integer};
use crate::plan::{
    AppProtocol, CgroupLimits, HostField, Listening, OnAbort, ProcessLimits, Secret,
};

/// An application that Forebay starts and supervises.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["kind"], "oneOf": by_form() }))]
// More than 20 fields: one for each key of the table, because the schema is
// generated from the fields. Inner structs with `serde(flatten)` would lose the positions of
// errors.
pub struct App {
    /// The kind of application.
    pub kind: Option<At<Kind>>,
    /// The directory of the scripts (cgi-bin, perl-cgi, python-cgi), of the modules (wsgi, asgi) or
    /// of the ASP.NET application (mono). For other kinds, the working directory. Default: the
    /// directory of the configuration file that contains this table.
    pub dir: Option<At<String>>,
    /// The way to run each script. perl-cgi: registry (default), registry-prefork, perlrun, fork,
    /// cgi or prove. python-cgi: fresh (default), fork or prove. psgi, wsgi:
    /// keep (default) or prove.
    #[key(schema = mode_of_any_kind)]
    pub mode: Option<At<String>>,
    /// cgi-bin: the way to run Perl scripts, with the values of `mode` for perl-cgi. Default:
    /// registry.
    pub perl_mode: Option<At<String>>,
    /// cgi-bin: the way to run Python scripts, with the values of `mode` for python-cgi. Default:
    /// fresh.
    pub python_mode: Option<At<String>>,
    /// Mode prove: a script is kept in a worker after this many requests, of which at least 5 differ,
    /// if no request has left anything of its visitor. Until then, and after a finding, each request
    /// runs in a process of its own. Default: 50.
    pub prove_requests: Option<At<u64>>,
    /// perl-cgi, cgi-bin: Perl files and modules that each worker loads when it starts, such as
    /// ["startup.pl", "CGI"], as PerlRequire and PerlModule of mod_perl do. Not in the modes fork,
    /// cgi and prove. Default: none.
    pub preload: Option<At<OneOrMany<String>>>,
    /// cgi-bin, perl-cgi, python-cgi: the largest number of processes at the same time for scripts
    /// that no worker can run, such as shell scripts. Further requests wait. Default: 64.
    pub max_processes: Option<At<usize>>,
    /// psgi: the file whose last value is the application. rack: the config.ru. Default: for rack,
    /// config.ru in `dir`. wsgi, instead of `module`: a file such as trac.wsgi, whose `application`
    /// is called. node: the script. java: the JAR file.
    pub file: Option<At<String>>,
    /// mod-perl: the handler of the response, as PerlResponseHandler has it: "My::Handler" for its
    /// function `handler`, "My::Handler::page" for another one, "My::Handler->page" for a method, or
    /// a list. Default: none; then, and if all decline, the file that the path names below `root` is
    /// sent. Without `root`, no file is.
    pub handler: Option<At<OneOrMany<String>>>,
    /// mod-perl: Alias: the directory that has the files of this path, without the part of the path
    /// that `mount` names. Default: none; the whole path is looked up below `root`.
    pub alias: Option<At<String>>,
    /// mod-perl: handlers of the other phases, such as { access = "My::Gate" }. Default: none.
    #[key(default)]
    pub phases: Phases,
    /// mod-perl: what the handlers of the phases authen and authz find as AuthType, AuthName and
    /// Require. Default: none; then these phases do not run.
    pub auth: Option<At<PerlAuth>>,
    /// mod-perl: the values of dir_config, as PerlSetVar sets them; a list is as PerlAddVar.
    /// Default: none.
    #[key(default)]
    pub set_var: BTreeMap<String, At<OneOrMany<String>>>,
    /// mod-perl: as PerlOptions, such as ["+ParseHeaders", "-SetupEnv"]. Default: ["+SetupEnv",
    /// "+GlobalRequest"], as with `SetHandler perl-script`.
    pub options: Option<At<OneOrMany<String>>>,
    /// mod-perl: switches of perl, any of -T, -t, -w, -W, -X. Default: none.
    pub switches: Option<At<OneOrMany<String>>>,
    /// mod-perl: names of variables that the workers get from Forebay's own environment, as
    /// PerlPassEnv. Default: none.
    pub pass_env: Option<At<OneOrMany<String>>>,
    /// rack: the interpreter, such as that of rbenv. A relative path starts as that of `python`.
    /// Default: ruby from PATH.
    pub ruby: Option<At<String>>,
    /// wsgi, asgi: "module:callable", or "module:factory()" if a function returns the application.
    pub module: Option<At<String>>,
    /// cgi-bin, python-cgi, wsgi, asgi: the interpreter, such as that of a virtual environment. A
    /// relative path starts at `dir`, or else at the directory of this file. Default: the virtual
    /// environment that the #! lines of all Python scripts name, else python3 from PATH.
    pub python: Option<At<String>>,
    /// mod-perl: the directory that handlers see as the DocumentRoot; default: `dir`. php: the
    /// directory of the scripts. command that speaks fastcgi, scgi or uwsgi: the directory in
    /// SCRIPT_FILENAME and DOCUMENT_ROOT. For a command without `root`, PATH_INFO is the whole path.
    pub root: Option<At<String>>,
    /// php, and command that speaks fastcgi: endings of the files that may be run, such as [".php",
    /// ".phtml"]. For a command, "*" allows any file below `root`. Default: [".php"], but "*" for a
    /// command that is not PHP.
    pub scripts: Option<At<OneOrMany<String>>>,
    /// command: the program and its arguments. Forebay replaces {dir}, {socket} and {port} in them.
    /// A relative path of the program starts at `dir`, or else at the directory of this file. The
    /// program must remain in the foreground.
    pub run: Option<At<Vec<At<String>>>>,
    /// command: the protocol of the program; h2c is HTTP/2 without TLS (prior knowledge).
    pub speaks: Option<At<AppProtocol>>,
    /// command: the process that opens the socket, and the kind of socket. Default: the program
    /// opens the {socket} or {port} in `run` or `env`.
    pub listen: Option<At<Listening>>,
    /// command that speaks ajp: the secret that the program requires, as `secret` of Tomcat's
    /// connector. Default: none.
    pub secret: Option<At<Secret>>,
    /// command that speaks http or h2c: the Host that the program gets. "client" is the client's
    /// own Host; "backend" is 127.0.0.1 with the program's port, or localhost for a Unix socket.
    /// Default: "client".
    pub host: Option<At<HostField>>,
    /// The prefix of URL paths that the program does not see, such as "/phpmyadmin". php, and
    /// command that speaks fastcgi and has a `root`: Forebay looks up the script without the
    /// prefix, but SCRIPT_NAME contains it; other paths get 404. command that speaks http or h2c:
    /// Forebay removes the prefix from paths, and adds it to redirects and cookie paths. Default:
    /// none.
    pub strip_prefix: Option<At<String>>,
    /// psgi, mod-perl, wsgi, asgi, pagi, rack, and command that speaks fastcgi (without `root`), scgi or
    /// uwsgi: the prefix of the path that becomes SCRIPT_NAME, such as "/shop". The rest is
    /// PATH_INFO. With "", the whole path is PATH_INFO. Default: the part of the route's `path`
    /// before its "/*".
    pub mount: Option<At<String>>,
    /// asgi, pagi, and command that speaks http or h2c: sends a client to the same process each time,
    /// with a cookie, if the process still runs and has a free connection. Default: no.
    pub sticky: Option<At<ProcessSticky>>,
    /// node, java, and command that speaks http: paths that Forebay requests from a new process
    /// before the process gets requests of clients, such as ["/login"]. Each must answer with a
    /// status below 500 within `start_timeout`. Default: none.
    pub warm_up: Option<At<OneOrMany<String>>>,
    /// php: settings as in php.ini, such as { upload_max_filesize = "64M" }. Default: none.
    #[key(default)]
    pub ini: BTreeMap<String, At<String>>,
    /// php: the version, such as "8.2". Default: the newest installed version.
    pub version: Option<At<String>>,
    /// mono, rack: the number of requests that each process serves at the same time. Default: 16
    /// for mono, 1 for rack.
    pub threads: Option<At<usize>>,
    /// mono: the path of the application, such as "/shop" for a route with path = "/shop/*".
    /// Default: "/".
    pub virtual_path: Option<At<String>>,
    /// command, asgi, pagi: the largest number of open connections to each process. Each request or
    /// WebSocket needs one. rack: the largest number of open requests and WebSockets of each
    /// process. Default: 1000 for asgi and pagi, 100 for a command that speaks http, h2c or ajp, `threads`
    /// for rack, else 1.
    pub connections: Option<At<usize>>,
    /// asgi, pagi: the largest WebSocket message. A client that sends a larger message is disconnected
    /// with code 1009. Default: "16MiB".
    pub max_message: Option<Size>,
    /// The longest time from the start of a process until it takes requests. Requests wait as long
    /// while no process does. Default: "30s".
    pub start_timeout: Option<Time>,
    /// command, php, mono, rack, asgi, pagi: the time from SIGTERM to SIGKILL. Default: "10s".
    pub stop_timeout: Option<Time>,

    /// The number of processes, or { min, max } to start and stop processes on demand. For php, the
    /// number of php-fpm's children. Default: 4; 1 for asgi, pagi and mono, which run many requests at
    /// once, and for command, which may have its own workers.
    pub workers: Option<At<Workers>>,
    /// The number of requests after which a worker is replaced. Default: no limit.
    pub max_requests: Option<At<u64>>,
    /// The age at which a worker is replaced. Forebay replaces each worker up to a tenth of this
    /// time earlier, at random. Default: no limit.
    pub max_age: Option<Time>,
    /// Files and directories, relative to `dir`. If one changes, the workers are replaced one by
    /// one. Forebay checks once a second. In a directory, Forebay ignores data that applications
    /// write: its own subdirectories log, logs, tmp and node_modules, and all files that end in
    /// .log, .pid, .sock, .db, .sqlite or .sqlite3. Default: none.
    pub watch: Option<At<OneOrMany<String>>>,
    /// The longest time from the request's head to the last byte of the reply. For rack, asgi, pagi and a
    /// command, the longest time without data during a request. Default: "60s".
    pub request_timeout: Option<Time>,
    /// What happens to a request whose client has left: `on_abort` of the routes to this
    /// application that have none of their own. Default: "cancel" for asgi and pagi, else "finish".
    pub on_abort: Option<At<OnAbort>>,
    /// The number of requests that may wait for a worker. Default: 1024.
    pub queue: Option<At<usize>>,
    /// A text with placeholders that names the client of a request. While requests wait for a
    /// worker, those of different clients take turns, so that no client waits behind a thousand
    /// requests of another. "" serves requests in the order of their arrival. {client} takes all
    /// addresses of an IPv6 network (/64) as one client. Default: "{client}".
    pub fair: Option<At<String>>,
    /// The longest time that a request may wait for a worker, if one takes requests at all.
    /// Default: "10s".
    pub queue_timeout: Option<Time>,
    /// Variables added to the workers' environment. They also replace CGI variables of the request
    /// that have the same name, such as REMOTE_USER and DOCUMENT_ROOT, except HTTP_PROXY.
    #[key(default)]
    pub env: BTreeMap<String, At<String>>,
    /// php, mono, command that speaks fastcgi, scgi or uwsgi: parameters added to those of each
    /// request. They replace parameters of the request that have the same name.
    #[key(default)]
    pub params: BTreeMap<String, At<String>>,
    /// perl-cgi, python-cgi, cgi-bin, psgi, mod-perl, wsgi, asgi, pagi, rack: directories where Perl
    /// (@INC), Python (sys.path) and Ruby ($LOAD_PATH) look for modules first. Default: none.
    pub lib: Option<At<OneOrMany<String>>>,
    /// The user that the workers run as, with the groups of that user. Needs root. Default:
    /// `app_user` of `[server]`.
    pub user: Option<At<String>>,
    /// The group that the workers run as, without any other group. Needs root. Default: the groups
    /// of `user`.
    pub group: Option<At<String>>,
    /// Resource limits of each process. Default: those of Forebay.
    #[key(default)]
    pub limits: ProcessLimits,
    /// Limits for all processes of the application together. Forebay sets them with a control group
    /// (Linux, version 2). If Forebay may not create the group, the log and /status report this.
    /// Default: no limit.
    #[key(default)]
    pub cgroup: CgroupLimits,
    /// The idle time after which a worker is stopped, if more than `min` workers run. For php,
    /// works only with `min` 0. Default: "60s".
    pub idle_timeout: Option<Time>,
    /// The resident memory above which a worker is replaced. Default: no limit.
    pub max_memory: Option<Size>,
    /// The CPU time after which a worker is replaced. The CPU time of processes that the worker has
    /// started counts, too. Forebay replaces each worker up to a tenth of this time earlier, at
    /// random. Default: no limit.
    pub max_cpu: Option<Time>,
    /// The largest size of one reply, including its head. A longer reply is cut off, and the worker
    /// that sent it is ended. Not for rack, asgi, pagi and a command that speaks http or ajp. Default: no
    /// limit.
    pub max_output: Option<Size>,
}

/// The kind of application.
#[derive(Clone, Copy, Debug, Choice)]
pub enum Kind {
    /// Unchanged CGI scripts in several languages. Workers run the Perl and Python scripts. For
    /// every other script, Forebay starts one process for each request.
    CgiBin,
    /// Unchanged Perl CGI scripts.
    PerlCgi,
    /// Unchanged Python CGI scripts.
    PythonCgi,
    /// A PSGI application.
    Psgi,
    /// Handlers for mod_perl 2, without Apache.
    ModPerl,
    /// A WSGI application.
    Wsgi,
    /// A Rack application in Ruby.
    Rack,
    /// An ASGI application, which runs many requests at once.
    Asgi,
    /// A PAGI application, which is asynchronous Perl and runs many requests at once.
    Pagi,
    /// PHP scripts.
    Php,
    /// An ASP.NET application on Mono.
    Mono,
    /// A server in JavaScript on Node.js: a command that Forebay writes.
    Node,
    /// A server in a JAR file, such as one of Spring Boot: a command that Forebay writes.
    Java,
    /// A program that listens on a socket itself.
    Command,
}

/// A combination of keys that an application can have. Only the schema uses this type.
struct KindForm {
    kind: &'static str,
    /// The values of `speaks` that this form is for.
    speaks: &'static [&'static str],
    /// Required keys.
    must: &'static [&'static str],
    /// Optional keys that only some kinds have.
    may: &'static [&'static str],
    modes: &'static [&'static str],
}

const FORM: KindForm =
    KindForm { kind: "", speaks: &[], must: &[], may: &["lib", "max_output"], modes: &[] };

const READY: KindForm = KindForm {
    must: &["file"],
    may: &["host", "strip_prefix", "sticky", "connections", "stop_timeout", "warm_up"],
    ..FORM
};

const FORMS: [KindForm; 19] = [
    KindForm { kind: "node", ..READY },
    KindForm { kind: "java", ..READY },
    KindForm {
        kind: "cgi-bin",
        must: &["dir"],
        may: &[
            "perl_mode",
            "python_mode",
            "prove_requests",
            "preload",
            "max_processes",
            "python",
            "lib",
            "max_output",
        ],
        ..FORM
    },
    KindForm {
        kind: "perl-cgi",
        must: &["dir"],
        may: &["mode", "prove_requests", "preload", "max_processes", "lib", "max_output"],
        modes: &["registry", "registry-prefork", "perlrun", "fork", "cgi", "prove"],
        ..FORM
    },
    KindForm {
        kind: "python-cgi",
        must: &["dir"],
        may: &["mode", "prove_requests", "max_processes", "python", "lib", "max_output"],
        modes: &["fresh", "fork", "prove"],
        ..FORM
    },
    KindForm {
        kind: "psgi",
        must: &["file"],
        may: &["mode", "prove_requests", "mount", "lib", "max_output"],
        modes: &["keep", "prove"],
        ..FORM
    },
    KindForm {
        kind: "mod-perl",
        may: &[
            "handler",
            "alias",
            "phases",
            "auth",
            "set_var",
            "options",
            "switches",
            "pass_env",
            "preload",
            "root",
            "mount",
            "lib",
            "max_output",
        ],
        ..FORM
    },
    KindForm {
        kind: "wsgi",
        must: &["module"],
        may: &["mode", "prove_requests", "python", "mount", "lib", "max_output"],
        modes: &["keep", "prove"],
        ..FORM
    },
    KindForm {
        kind: "wsgi",
        must: &["file"],
        may: &["mode", "prove_requests", "python", "mount", "lib", "max_output"],
        modes: &["keep", "prove"],
        ..FORM
    },
    KindForm {
        kind: "rack",
        may: &["file", "ruby", "threads", "connections", "mount", "lib", "stop_timeout"],
        ..FORM
    },
    KindForm {
        kind: "asgi",
        must: &["module"],
        may: &["python", "lib", "connections", "sticky", "mount", "max_message", "stop_timeout"],
        ..FORM
    },
    KindForm {
        kind: "pagi",
        must: &["file"],
        may: &["lib", "connections", "sticky", "mount", "max_message", "stop_timeout"],
        ..FORM
    },
    KindForm {
        kind: "php",
        must: &["root"],
        may: &["params", "scripts", "strip_prefix", "ini", "version", "stop_timeout", "max_output"],
        ..FORM
    },
    KindForm {
        kind: "mono",
        must: &["dir"],
        may: &["params", "threads", "virtual_path", "stop_timeout", "max_output"],
        ..FORM
    },
    KindForm {
        kind: "command",
        speaks: &["http"],
        must: &["run", "speaks"],
        may: &[
            "listen",
            "host",
            "strip_prefix",
            "sticky",
            "connections",
            "stop_timeout",
            "warm_up",
        ],
        ..FORM
    },
    KindForm {
        kind: "command",
        speaks: &["h2c"],
        must: &["run", "speaks"],
        may: &["listen", "host", "strip_prefix", "sticky", "connections", "stop_timeout"],
        ..FORM
    },
    KindForm {
        kind: "command",
        speaks: &["fastcgi"],
        must: &["run", "speaks"],
        may: &[
            "params",
            "root",
            "scripts",
            "strip_prefix",
            "mount",
            "listen",
            "connections",
            "stop_timeout",
            "max_output",
        ],
        ..FORM
    },
    KindForm {
        kind: "command",
        speaks: &["scgi", "uwsgi"],
        must: &["run", "speaks"],
        may: &["params", "root", "mount", "listen", "connections", "stop_timeout", "max_output"],
        ..FORM
    },
    KindForm {
        kind: "command",
        speaks: &["ajp"],
        must: &["run", "speaks"],
        may: &["secret", "listen", "connections", "stop_timeout"],
        ..FORM
    },
];

/// Returns one schema for each form. Each schema forbids the keys that only other forms have.
fn by_form() -> Vec<Schema> {
    let keys = || FORMS.iter().flat_map(|form| form.must.iter().chain(form.may));
    let of_form = |form: &KindForm| {
        let is_own = |key: &str| form.must.contains(&key) || form.may.contains(&key);
        let mut properties = serde_json::Map::new();
        // Every kind may have `dir`. If a kind runs no scripts, `dir` is the working directory.
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
            let needs = serde_json::json!({ "scripts": ["root"], "strip_prefix": ["root"] });
            schema.insert("dependentRequired".into(), needs);
        }
        schema
    };
    FORMS.iter().map(of_form).collect()
}

/// The schema of `mode`, with the modes of all kinds. `by_form` then limits each kind to its own
/// modes.
fn mode_of_any_kind(generator: &mut SchemaGenerator) -> Schema {
    struct Mode;
    impl JsonSchema for Mode {
        fn schema_name() -> Cow<'static, str> {
            "Mode".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let mode =
                |name: &str, what: &str| json_schema!({ "const": name, "description": what });
            json_schema!({
                "description": "The way to run each script.",
                "oneOf": [
                    mode("registry", "perl-cgi: compiles once, runs many times in one process."),
                    mode("registry-prefork", "perl-cgi: like registry, in the script's directory."),
                    mode("perlrun", "perl-cgi: compiles for each request in a persistent process."),
                    mode("fork", "Runs each request in a forked process of its own."),
                    mode("cgi", "perl-cgi: starts a process for each request."),
                    mode("fresh", "python-cgi: a new module for each request in a persistent process."),
                    mode("keep", "psgi, wsgi: workers load the application once, and keep it."),
                    mode("prove", "Like fork, until a script has proved that it may be kept."),
                ],
            })
        }
    }
    generator.subschema_for::<Mode>()
}

/// Sends a client to the same process each time.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["cookie"] }))]
pub struct ProcessSticky {
    /// The name of the cookie that Forebay sets.
    pub cookie: Option<At<String>>,
}

/// The number of processes.
#[derive(Clone, Copy, Debug)]
pub enum Workers {
    /// A fixed number.
    Count(usize),
    /// A range: processes are started on demand and stopped when idle.
    Range(Range),
}

/// A range: processes are started on demand and stopped when idle.
#[derive(Clone, Copy, Debug, Default, Table)]
#[table(extend = json!({ "required": ["max"] }))]
pub struct Range {
    /// The number of processes that always run. Default: 0.
    pub min: Option<usize>,
    /// The largest number of processes.
    pub max: Option<usize>,
}

impl Form for Workers {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        let (count, range) = (usize::schema(generator), Range::schema(generator));
        json_schema!({ "anyOf": [count, range] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match node.get_ref() {
            DeValue::Table(_) => Range::read(node, cx).map(Self::Range),
            _ => integer(node, cx, "a number such as 4, or a table such as { min = 0, max = 8 }")
                .map(Self::Count),
        }
    }
}

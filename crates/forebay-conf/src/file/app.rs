//! An application as typed.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::shape::{At, Size, Time};

/// An application that Forebay starts and looks after.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["kind"]))]
pub struct App {
    /// What it is.
    pub kind: Option<At<Kind>>,
    /// The directory: of the scripts (perl-cgi, python-cgi), of the modules (wsgi), else the
    /// working directory. Default: that of this file.
    pub dir: Option<At<String>>,
    /// How each script is run. perl-cgi: registry (default), registry-prefork, perlrun, fork or
    /// cgi. python-cgi: fresh (default) or fork.
    pub mode: Option<At<Mode>>,
    /// psgi: the file whose last value is the application.
    pub file: Option<At<String>>,
    /// wsgi: "module:callable".
    pub module: Option<At<String>>,
    /// php: the directory of the scripts.
    pub root: Option<At<String>>,
    /// command: program and arguments.
    pub run: Option<At<Vec<At<String>>>>,
    /// command: the protocol it speaks.
    pub speaks: Option<At<Speaks>>,

    /// How many processes: a number, or { min, max } to start on demand. Default: 4.
    pub workers: Option<At<Workers>>,
    /// Requests a worker serves before it is replaced. Default: no limit.
    pub max_requests: Option<At<u64>>,
    /// From the request's head to the last byte of the reply. Default: "60s".
    pub request_timeout: Option<Time>,
    /// Requests that may wait for a worker. Default: 1024.
    pub queue: Option<At<usize>>,
    /// How long one may wait. Default: "10s".
    pub queue_timeout: Option<Time>,
    /// Variables added to the workers' environment.
    pub env: BTreeMap<String, At<String>>,
    /// The user the workers run as. Default: the one Forebay runs as.
    pub user: Option<At<String>>,
    /// How long a worker above `min` may be idle before it is stopped. Default: "60s".
    pub idle_timeout: Option<Time>,
    /// Resident memory above which a worker is replaced. Default: no limit.
    pub max_memory: Option<Size>,
    /// Bytes of one reply, its head included; more end it, and the worker. Default: no limit.
    pub max_output: Option<Size>,
}

/// What an application is.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
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
    /// A program that listens by itself.
    Command,
}

/// How each script is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// perl-cgi: compiled once, run many times in one process.
    Registry,
    /// perl-cgi: as registry, compiled before the workers are forked.
    RegistryPrefork,
    /// perl-cgi: compiled for each request in a process that stays.
    #[serde(rename = "perlrun")]
    PerlRun,
    /// Each request in a fork of its own.
    Fork,
    /// perl-cgi: a process for each request.
    Cgi,
    /// python-cgi: a fresh module for each request in a process that stays.
    Fresh,
}

/// The protocol a program speaks.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Speaks {
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

//! ASP.NET on Mono. Forebay runs `hosts/mono.cs` as a program that speaks FastCGI.

use crate::compiled_host::{ASSEMBLY, CompiledHost};
use crate::program::{Listening, ProgramSpec};
use std::path::PathBuf;

/// Files of an application, in all spellings that ASP.NET accepts. If one of these files changes,
/// Forebay starts a new process. ASP.NET itself would end the application at once, together with
/// its current requests.
const WATCHED: [&str; 10] = [
    "bin",
    "web.config",
    "Web.config",
    "Web.Config",
    "Global.asax",
    "global.asax",
    "App_Code",
    "App_Browsers",
    "App_GlobalResources",
    "app_offline.htm",
];

/// The configuration keys of an ASP.NET application that the host needs.
#[derive(Debug, Clone)]
pub struct Mono {
    /// Maximum number of concurrent requests of each process.
    pub threads: usize,
    /// The URL path of the application, for example `/shop`.
    pub virtual_path: String,
}

/// Returns the specification of a program that runs the ASP.NET application in its `dir`. The
/// caller must set the other fields, which do not depend on `mono`. The paths in `watch` are
/// relative to `dir`.
pub fn mono(name: &str, mono: &Mono) -> ProgramSpec {
    let threads = mono.threads.to_string();
    let assembly = format!("{{host}}/{ASSEMBLY}");
    let run = ["mono", &assembly, "{socket}", "{dir}", &mono.virtual_path, &threads];
    let run = run.map(str::to_owned).into();
    let mut spec = ProgramSpec::new(name, run, Listening::Socket);
    spec.host = Some(CompiledHost);
    // The application's `AppDomain` finds the host's assembly through MONO_PATH. Each process
    // compiles pages in its own directory, because mono empties a shared directory. A request
    // leaves some 15 KB of garbage. With a young generation (nursery) of 16 MB instead of 4 MB, a
    // small request needs 17 % less CPU time. With 32 MB, the request needs another 2 % less, but
    // the process needs 50 MB more memory.
    let own =
        [("MONO_PATH", "{host}"), ("TMPDIR", "{room}"), ("MONO_GC_PARAMS", "nursery-size=16m")];
    spec.env = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    spec.connections = mono.threads;
    spec.watch = WATCHED.map(PathBuf::from).into();
    spec
}

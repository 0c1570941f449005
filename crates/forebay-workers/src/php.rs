//! PHP as a program that speaks FastCGI: php-fpm with a generated configuration, or php-cgi if
//! php-fpm is missing. Both programs manage their own child processes; Forebay supervises the
//! parent.
//!
//! <https://www.php.net/manual/en/install.fpm.configuration.php>

use crate::program::{Listening, ProgramSpec};
use crate::spec::Workers;
use forebay_process::StartError;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The configuration keys of a PHP application from which php-fpm's configuration is generated.
#[derive(Debug, Clone)]
pub struct Php {
    /// Number of PHP's child processes.
    pub children: Workers,
    /// Maximum number of requests of a child process. PHP then replaces the process.
    pub max_requests: Option<u64>,
    /// Time limit of a request.
    pub request_timeout: Duration,
    /// An idle child process that is not needed ends after this time.
    pub idle_timeout: Duration,
    /// Allowed file name extensions. Each starts with a dot and contains no spaces.
    pub scripts: Vec<String>,
    /// Settings as in php.ini, `name=value`.
    pub ini: Vec<String>,
    /// The version, for example `8.2`. `None` for the newest installed version.
    pub version: Option<String>,
}

/// Returns the specification of a program that runs PHP scripts. The caller must set the other
/// fields, which do not depend on `php`. Fails if this version of PHP is not installed.
pub fn php(name: &str, php: Php) -> Result<ProgramSpec, StartError> {
    let version = php.version.as_deref();
    let settings = php.ini.iter().flat_map(|setting| ["-d".to_owned(), setting.clone()]);
    let mut spec = if let Some(program) = php_fpm(version) {
        // php-fpm would send messages of scripts over FastCGI, too.
        let options = ["--nodaemonize", "--fpm-config", "{room}/php-fpm.conf"];
        let once = ["-d", "fastcgi.logging=0"];
        let options = options.into_iter().chain(once).map(str::to_owned);
        let program = program.to_string_lossy().into_owned();
        let run = [program].into_iter().chain(options).chain(settings).collect();
        let mut spec = ProgramSpec::new(name, run, Listening::Socket);
        spec.files = vec![("php-fpm.conf".to_owned(), configuration(&php))];
        spec
    } else if let Some(program) = find(&format!("php-cgi{}", version.unwrap_or_default())) {
        let run = [program.to_string_lossy().into_owned(), "-b".into(), "{socket}".into()];
        let run = run.into_iter().chain(settings).collect();
        let mut spec = ProgramSpec::new(name, run, Listening::Socket);
        let most = php.max_requests.unwrap_or(u64::from(u32::MAX >> 1));
        spec.env = vec![
            ("PHP_FCGI_CHILDREN".into(), php.children.max.to_string()),
            ("PHP_FCGI_MAX_REQUESTS".into(), most.to_string()),
        ];
        spec
    } else if let Some(version) = version {
        let what = format!(
            "neither php-fpm{version} nor php-cgi{version} is in PATH or /usr/sbin{}",
            others()
        );
        let error = StartError::new(name, what);
        return Err(error.at(&["version"]).help("install it, or leave `version` out"));
    } else {
        let error = StartError::new(name, "neither php-fpm nor php-cgi is in PATH or /usr/sbin");
        return Err(error.at(&["kind"]).help("install one of them"));
    };
    spec.needs_user = true;
    spec.connections = php.children.max;
    Ok(spec)
}

/// Returns php-fpm's configuration. The process pool listens on the socket for Forebay, and runs as
/// the user that runs php-fpm.
fn configuration(php: &Php) -> String {
    let Workers { min, max } = php.children;
    let mut text = format!(
        "[global]\n\
         daemonize = no\n\
         error_log = /proc/self/fd/2\n\
         log_limit = 8192\n\
         [app]\n\
         listen = {{socket}}\n\
         listen.mode = 0600\n\
         clear_env = no\n\
         catch_workers_output = yes\n\
         decorate_workers_output = no\n\
         pm.max_children = {max}\n\
         pm.max_requests = {}\n\
         request_terminate_timeout = {}s\n\
         security.limit_extensions = {}\n",
        php.max_requests.unwrap_or(0),
        php.request_timeout.as_secs().max(1),
        php.scripts.join(" "),
    );
    let idle = php.idle_timeout.as_secs().max(1);
    let _ = match (min, max) {
        (min, max) if min == max => writeln!(text, "pm = static"),
        (0, _) => writeln!(text, "pm = ondemand\npm.process_idle_timeout = {idle}s"),
        (min, max) => writeln!(
            text,
            "pm = dynamic\npm.start_servers = {min}\npm.min_spare_servers = 1\n\
             pm.max_spare_servers = {}",
            min.max(max / 2)
        ),
    };
    text
}

/// Returns the path of php-fpm in this version. Without a version, returns the path of `php-fpm`.
/// If there is no `php-fpm`, returns the newest program with a version in its name, such as
/// Debian's `php-fpm8.2`. Returns `None` if there is no such program.
fn php_fpm(version: Option<&str>) -> Option<PathBuf> {
    if let Some(version) = version {
        return find(&format!("php-fpm{version}"));
    }
    find("php-fpm").or_else(|| versions().pop().map(|(_, path)| path))
}

/// Returns the versions of php-fpm in /usr/sbin, the newest last.
fn versions() -> Vec<((u32, u32), PathBuf)> {
    let files = std::fs::read_dir("/usr/sbin").into_iter().flatten().flatten();
    let versions = files.filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        let (major, minor) = name.strip_prefix("php-fpm")?.split_once('.')?;
        let version: (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        Some((version, file.path()))
    });
    let mut versions: Vec<_> = versions.collect();
    versions.sort();
    versions
}

/// Returns the installed versions as text for an error message.
fn others() -> String {
    let names = versions().into_iter().map(|((major, minor), _)| format!("{major}.{minor}"));
    let names: Vec<_> = names.collect();
    if names.is_empty() { String::new() } else { format!("; installed: {}", names.join(", ")) }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_workers_chooses_the_process_manager() {
        let text = |min, max| {
            configuration(&Php {
                children: Workers { min, max },
                max_requests: Some(500),
                request_timeout: Duration::from_secs(60),
                idle_timeout: Duration::from_millis(10),
                scripts: vec![".php".into(), ".phtml".into()],
                ini: Vec::new(),
                version: None,
            })
        };
        assert!(text(4, 4).contains("pm = static\n"));
        assert!(text(0, 4).contains("pm = ondemand\npm.process_idle_timeout = 1s\n"));
        let dynamic = text(3, 4);
        assert!(dynamic.contains("pm.start_servers = 3\n"), "{dynamic}");
        assert!(dynamic.contains("pm.max_spare_servers = 3\n"), "{dynamic}");
        assert!(dynamic.contains("pm.max_requests = 500\n"), "{dynamic}");
        assert!(dynamic.contains("security.limit_extensions = .php .phtml\n"), "{dynamic}");
    }
}

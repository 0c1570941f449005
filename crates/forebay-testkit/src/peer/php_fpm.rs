//! php-fpm: <https://www.php.net/manual/en/install.fpm.configuration.php>.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Peer, WORKER, has, is_root, on_socket};
use crate::process::{self, Process};

/// Starts php-fpm with `children` processes on a Unix socket.
///
/// If the test runs as root, php-fpm runs as Debian's user for web servers. This user can read the
/// files in a [`Folder`](crate::folder::Folder). If php-fpm is not installed, reports the test as
/// skipped and returns `None`.
pub fn php_fpm(children: usize) -> Option<Peer> {
    php_fpm_with(children, "")
}

/// Works as [`php_fpm`] does, with further lines for the pool, such as "pm.max_requests = 10".
pub fn php_fpm_with(children: usize, lines: &str) -> Option<Peer> {
    let program = installed_program()?;
    Some(on_socket(|folder, socket| {
        let user =
            if is_root() { format!("user = {WORKER}\ngroup = {WORKER}\n") } else { String::new() };
        let text = format!(
            "[global]\n\
             daemonize = no\n\
             error_log = /proc/self/fd/2\n\
             [test]\n\
             listen = {}\n\
             listen.mode = 0666\n\
             {user}\
             pm = static\n\
             pm.max_children = {children}\n\
             catch_workers_output = yes\n\
             {lines}\n",
            socket.display(),
        );
        let file = folder.write("php-fpm.conf", text);
        let mut command = Command::new(&program);
        command.arg("--nodaemonize").arg("--fpm-config").arg(file);
        Process::start(command)
    }))
}

/// Returns true if php-fpm is installed. Otherwise, reports the test as skipped.
pub fn has_php_fpm() -> bool {
    installed_program().is_some()
}

/// Returns true if php-cgi is installed. Otherwise, reports the test as skipped.
pub fn has_php_cgi() -> bool {
    has(&["php-cgi"])
}

fn installed_program() -> Option<PathBuf> {
    has(&["php-fpm"]).then(program)?
}

/// Returns the path of the program php-fpm. In Debian, the program's name contains the version,
/// such as `php-fpm8.4`. Returns the program with the highest version, or `None` if there is none.
fn program() -> Option<PathBuf> {
    if let Some(program) = process::find("php-fpm") {
        return Some(program);
    }
    let names = fs::read_dir("/usr/sbin").ok()?.flatten();
    names
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let (major, minor) = name.strip_prefix("php-fpm")?.split_once('.')?;
            let version: (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
            Some((version, file.path()))
        })
        .max()
        .map(|(_, path)| path)
}

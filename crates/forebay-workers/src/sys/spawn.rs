//! Starts a process with a fourth descriptor, without `fork`.
//!
//! `fork` copies the page tables of this process: with 1 GB of memory, a start took 47 ms of CPU
//! time instead of 0.4 ms. The standard library avoids `fork`, but passes only three descriptors.
//! So this module calls `posix_spawn` in the same way, with one more descriptor.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::Pid;
use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

/// Number of descriptors of a process: 0, 1, 2 and 3.
pub(crate) const DESCRIPTORS: usize = 4;

/// Starts `program` in its own process group, with arguments, directory and environment of
/// `command`. The process gets only the variables of `command`, and only `descriptors`, as numbers
/// 0, 1 and so on. No signal is blocked, and SIGPIPE ends the process.
///
/// # Errors
/// An error of `posix_spawn`, for example because the program cannot be run or its directory cannot
/// be entered. Also fails if a limit on processes or descriptors is reached, or if a text contains
/// NUL.
pub(crate) fn spawn(
    program: &Path,
    command: &Command,
    descriptors: [OwnedFd; DESCRIPTORS],
) -> io::Result<Pid> {
    let program = c_string(program.as_os_str())?;
    let name = std::iter::once(command.get_program()).chain(command.get_args());
    let arguments = name.map(c_string).collect::<io::Result<Vec<_>>>()?;
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let variables = variables.map(variable).collect::<io::Result<Vec<_>>>()?;
    let dir = command.get_current_dir().map(|dir| c_string(dir.as_os_str())).transpose()?;
    let descriptors = beyond(descriptors)?;
    let mut actions = Actions::new()?;
    if let Some(dir) = &dir {
        actions.enter(dir)?;
    }
    for (descriptor, place) in descriptors.iter().zip(0..) {
        actions.place(descriptor, place)?;
    }
    let attributes = Attributes::new()?;
    let (arguments, variables) = (pointers(&arguments), pointers(&variables));
    let mut pid = 0;
    // SAFETY: all pointers refer to values that live until the call returns: NUL-terminated
    // strings, and arrays of them that end with a null pointer. The call does not write to them.
    check(unsafe {
        libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            &actions.0,
            &attributes.0,
            arguments.as_ptr(),
            variables.as_ptr(),
        )
    })?;
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("a process without a number"))
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

fn variable((name, value): (&OsStr, &OsStr)) -> io::Result<CString> {
    Ok(CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())?)
}

fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings.iter().map(|text| text.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

/// Replaces each descriptor whose number is less than [`DESCRIPTORS`] with a copy that has a higher
/// number. The new process duplicates its descriptors to 0, 1 and so on, and could otherwise
/// overwrite a descriptor before it has duplicated that descriptor.
fn beyond(descriptors: [OwnedFd; DESCRIPTORS]) -> io::Result<Vec<OwnedFd>> {
    let places = DESCRIPTORS as i32;
    let moved = descriptors.into_iter().map(|descriptor| {
        if descriptor.as_raw_fd() < places {
            Ok(fcntl_dupfd_cloexec(&descriptor, places)?)
        } else {
            Ok(descriptor)
        }
    });
    moved.collect()
}

fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// The steps of the new process before it runs the program.
struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> io::Result<Actions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call makes its argument valid, unless it fails.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: the call above has not failed.
        Ok(Actions(unsafe { actions.assume_init() }))
    }

    fn enter(&mut self, dir: &CString) -> io::Result<()> {
        // SAFETY: self is valid; the string ends with NUL and is copied.
        check(unsafe { libc::posix_spawn_file_actions_addchdir_np(&mut self.0, dir.as_ptr()) })
    }

    /// Lets the new process duplicate `descriptor` as number `place`. The program inherits the
    /// duplicate, which stays open on exec.
    fn place(&mut self, descriptor: &OwnedFd, place: i32) -> io::Result<()> {
        let descriptor = descriptor.as_raw_fd();
        // SAFETY: self is valid.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&mut self.0, descriptor, place) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: self is valid, and not used again.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

/// Attributes of the new process besides descriptors and directory.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call makes its argument valid, unless it fails.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: the call above has not failed.
        let mut attributes = Attributes(unsafe { attributes.assume_init() });
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset makes the set valid; 0 requests a new group; SIGPIPE is a signal; and
        // the flags match the attributes that are set here.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            check(libc::posix_spawnattr_setsigmask(&mut attributes.0, &set))?;
            libc::sigaddset(&mut set, libc::SIGPIPE);
            check(libc::posix_spawnattr_setsigdefault(&mut attributes.0, &set))?;
            check(libc::posix_spawnattr_setpgroup(&mut attributes.0, 0))?;
            let flags = libc::POSIX_SPAWN_SETPGROUP
                | libc::POSIX_SPAWN_SETSIGDEF
                | libc::POSIX_SPAWN_SETSIGMASK;
            check(libc::posix_spawnattr_setflags(&mut attributes.0, flags as libc::c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: self is valid, and not used again.
        unsafe { libc::posix_spawnattr_destroy(&mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_process::Child;
    use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    /// Returns the output of a shell that runs `text`, with a descriptor 3 that reads "three".
    fn printed(text: &str, dir: &Path) -> String {
        let (read_end, write_end) = std::io::pipe().unwrap();
        let (three, mut its_three) = std::io::pipe().unwrap();
        its_three.write_all(b"three\n").unwrap();
        drop(its_three);
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", text]).env_clear().env("A", "b").current_dir(dir);
        let descriptors = [null(), write_end.into(), null(), three.into()];
        let pid = spawn(Path::new("/bin/sh"), &command, descriptors).unwrap();
        let mut out = String::new();
        File::from(OwnedFd::from(read_end)).read_to_string(&mut out).unwrap();
        assert!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok());
        assert_eq!(Child::Own(pid).reap().unwrap().and_then(|status| status.code()), Some(0));
        out
    }

    #[test]
    fn a_program_has_its_descriptors_directory_and_environment_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let ours = fcntl_dupfd_cloexec(std::io::stderr().as_fd(), 40).unwrap();
        let text =
            "read line <&3; echo $line; pwd; env; for f in /proc/$$/fd/*; do echo ${f##*/}; done";
        let output = printed(text, &dir);
        let (before, open) = output.split_once("\n0\n").unwrap();
        let lines: Vec<_> = before.lines().collect();
        assert_eq!(lines[..2], ["three", dir.to_str().unwrap()]);
        assert!(lines.contains(&"A=b") && !before.contains("HOME="), "{before}");
        let open: Vec<i32> = open.lines().map(|number| number.parse().unwrap()).collect();
        assert!(open.contains(&1) && open.contains(&2) && open.contains(&3));
        assert!(!open.contains(&ours.as_raw_fd()), "{open:?}");
    }

    #[test]
    fn a_program_leads_a_group_and_is_ended_by_sigpipe() {
        // The shell reads the file itself, because it briefly blocks signals when it starts a
        // program.
        let text = "read -r line < /proc/$$/stat; echo \"$line\"; \
                    while read -r line; do echo \"$line\"; done < /proc/$$/status";
        let output = printed(text, Path::new("/"));
        let (stat, signals) = output.split_once('\n').unwrap();
        let fields: Vec<_> = stat.split(' ').collect();
        assert_eq!(fields[0], fields[4], "process and group");
        let masks = |name: &str| {
            let line = signals.lines().find(|line| line.starts_with(name)).unwrap();
            u64::from_str_radix(line[name.len()..].trim(), 16).unwrap()
        };
        assert_eq!(masks("SigBlk:"), 0);
        assert_eq!(masks("SigIgn:") & 1 << (Signal::PIPE.as_raw() - 1), 0);
    }

    #[test]
    fn a_program_that_cannot_run_is_an_error() {
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let descriptors = || [null(), null(), null(), null()];
        let absent = spawn(Path::new("/nonexistent/x"), &Command::new("x"), descriptors());
        assert_eq!(absent.unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut command = Command::new("true");
        command.current_dir("/nonexistent");
        let nowhere = spawn(Path::new("/bin/true"), &command, descriptors());
        assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

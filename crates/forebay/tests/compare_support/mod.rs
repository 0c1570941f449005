//! Shared parts of the tests of `forebay compare`: experiments with a small Perl server, and a
//! search for anything that an experiment has left.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::process::{Process, link_programs};

/// Time after which a test fails. Only a failing test waits that long.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A folder with an experiment, and with a temporary directory of its own.
pub struct Experiment {
    folder: Folder,
    text: String,
}

impl Experiment {
    /// Returns an experiment whose `[load]` has these lines.
    pub fn new(load: &str) -> Self {
        let folder = Folder::new();
        folder.write("server.pl", include_str!("server.pl"));
        fs::create_dir(folder.path().join("tmp")).unwrap();
        fs::create_dir(folder.path().join("seen")).unwrap();
        let text = format!("title = \"A <test> & more\"\n[load]\nconnections = 2\n{load}\n");
        Self { folder, text }
    }

    /// Adds a configuration that starts the Perl server with the given habits.
    pub fn server(self, name: &str, habits: &str) -> Self {
        self.server_with(name, habits, "")
    }

    /// As [`Self::server`], with additional lines.
    pub fn server_with(mut self, name: &str, habits: &str, lines: &str) -> Self {
        let habits: String = habits.split_whitespace().map(|h| format!(", \"{h}\"")).collect();
        self.text += &format!(
            "[[configuration]]\nname = \"{name}\"\nurl = \"http://127.0.0.1:{{port}}\"\n\
             start = [\"perl\", \"{{dir}}/server.pl\", \"{{port}}\", \"{{dir}}/seen\"{habits}]\n\
             stop_timeout = \"300ms\"\n{lines}\n"
        );
        self
    }

    /// Adds keys of the whole experiment.
    pub fn at_the_top(mut self, lines: &str) -> Self {
        self.text = format!("{lines}{}", self.text);
        self
    }

    /// Adds text to the experiment file.
    pub fn lines(mut self, lines: &str) -> Self {
        self.text += lines;
        self
    }

    /// `forebay compare` on this experiment.
    pub fn compare(&self, arguments: &[&str]) -> Command {
        let file = self.folder.write("experiment.toml", &self.text);
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("compare").arg(file).args(arguments);
        command.env("TMPDIR", self.tmp()).env_remove("NO_COLOR").current_dir(self.folder.path());
        command
    }

    /// Returns `forebay compare` in the folder, with these arguments and no file, after its end.
    pub fn run_without_file(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("compare").args(arguments);
        command.env("TMPDIR", self.tmp()).current_dir(self.folder.path());
        self.finish(command)
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs `forebay compare` to its end.
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.finish(self.compare(arguments))
    }

    /// Makes a directory with a substitute for perf and the programs that servers and perf need.
    /// Returns it as `PATH` for [`compare`](Self::compare). The substitute prints `text` as
    /// samples.
    pub fn fake_perf(&self, text: &[u8]) -> String {
        let bin = self.path_without_perf();
        let perf = self.folder.write("bin/perf", include_str!("fake_perf.sh"));
        fs::set_permissions(perf, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(self.folder.path().join("samples"), text).unwrap();
        bin
    }

    pub fn path_without_perf(&self) -> String {
        let bin = self.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        link_programs(&["perl", "sh", "sleep", "cat", "rm", "kill"], &bin);
        bin.display().to_string()
    }

    /// Runs a command of [`compare`](Self::compare) to its end.
    pub fn finish(&self, mut command: Command) -> Run {
        let file = |name: &str| self.folder.path().join(name);
        command.stdout(fs::File::create(file("stdout")).unwrap());
        command.stderr(fs::File::create(file("stderr")).unwrap());
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("it did not end: {}", self.read("stderr"));
            }
            thread::sleep(Duration::from_millis(3));
        };
        Run { code: status.code(), stdout: self.read("stdout"), stderr: self.read("stderr") }
    }

    /// Starts `forebay compare`.
    pub fn start(&self, arguments: &[&str]) -> Process {
        Process::start(self.compare(arguments))
    }

    /// Returns the text of a file in the folder.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Returns the JSON of the last run.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.read("forebay-report/report.json")).unwrap()
    }

    /// Returns the process ids that servers wrote.
    pub fn pids(&self) -> Vec<String> {
        self.read("seen/pids").lines().map(str::to_owned).collect()
    }

    /// Returns the number of requests that servers got.
    pub fn requests(&self) -> usize {
        self.read("seen/requests").len()
    }

    /// Returns the contents of the temporary directory.
    pub fn temporary(&self) -> Vec<PathBuf> {
        fs::read_dir(self.tmp()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the processes that `forebay compare` started directly or indirectly: they inherited
    /// its TMPDIR. A zombie process has no environment.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("TMPDIR={}", self.tmp().display());
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|entry| {
                let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
                let read = |name: &str| fs::read(entry.path().join(name)).ok();
                let environment = read("environ")?;
                let marked = environment.split(|&byte| byte == 0).any(|v| v == mark.as_bytes());
                let command = String::from_utf8_lossy(&read("cmdline")?).replace('\0', " ");
                marked.then_some((pid, command))
            })
            .collect()
    }

    /// Returns the control groups of keepers that still exist.
    pub fn cgroups() -> Vec<PathBuf> {
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten())
            .map(|entry| entry.path())
            .filter(|path| path.to_string_lossy().contains("forebay-compare-"))
            .collect()
    }

    /// Waits until nothing is left of the experiment.
    pub fn wait_until_gone(&self, when: &str) {
        wait_until(&format!("all was gone after {when}"), || {
            let (processes, files) = (self.processes(), self.temporary());
            let gone = processes.is_empty() && files.is_empty();
            (!gone).then(|| format!("left: {processes:?}, {files:?}"))
        });
    }

    fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }
}

/// A finished `forebay compare`.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Asks until `wrong` returns `None`. At the deadline, fails with its last answer.
pub fn wait_until(what: &str, mut wrong: impl FnMut() -> Option<String>) {
    let deadline = Instant::now() + DEADLINE;
    while let Some(wrong) = wrong() {
        assert!(Instant::now() < deadline, "never: {what}; {wrong}");
        thread::sleep(Duration::from_millis(3));
    }
}

//! References for `--against`: saved results, or a git revision.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_lab::profile::Profile;
use forebay_lab::{Configuration, Experiment, Group, Plan, Progress, Results, Trial, report};

use super::cannot_write;

/// Directory with saved results, next to the experiment file.
const FOLDER: &str = "forebay-saved";
/// File in a checkout that marks a successful build. The file contains the build command.
const BUILT: &str = ".forebay-built";
const LONGEST_NAME: usize = 64;

/// Returns the name of saved results. Fails if the name has characters that a file name must not
/// have, or is too long.
pub fn name(text: &str) -> Result<String, String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if text.is_empty()
        || text.len() > LONGEST_NAME
        || text.starts_with(['.', '-'])
        || !text.bytes().all(is_plain)
    {
        return Err("use letters, digits, dots, - and _, at most 64 characters".to_owned());
    }
    Ok(text.to_owned())
}

fn saved_path(plan: &Plan, name: &str) -> PathBuf {
    plan.dir.join(FOLDER).join(format!("{name}.json"))
}

/// Saves the results of an experiment. Returns the path of the file.
pub fn save(experiment: &Experiment, name: &str) -> Result<PathBuf, String> {
    let path = saved_path(&experiment.plan, name);
    let text = format!("{:#}\n", report::json(experiment));
    fs::create_dir_all(experiment.plan.dir.join(FOLDER))
        .and_then(|()| replace(&path, text.as_bytes()))
        .map_err(|error| cannot_write(&path, &error))?;
    Ok(path)
}

/// Paths and options of a comparison with earlier results.
pub struct WorkDirectories<'a> {
    /// Path of the experiment file. `None` if the command line describes the experiment.
    pub file: Option<&'a Path>,
    /// Parent directory of the checkouts of revisions.
    pub out: &'a Path,
    /// True if the output of builds is hidden.
    pub quiet: bool,
}

/// Adds the configurations of an earlier experiment to the plan, so that they run in the same
/// rounds as the current configurations. `label` is the name of saved results, or a git revision.
///
/// A saved configuration whose settings have not changed does not run again: the function returns
/// its saved results. The configurations of a git revision always run, because their directory
/// (`{dir}`) differs from the current directory.
pub fn prepare(
    plan: &mut Plan,
    label: &str,
    place: &WorkDirectories<'_>,
) -> Result<Vec<Results>, String> {
    let path = name(label).ok().map(|name| saved_path(plan, &name));
    match path.filter(|path| path.is_file()) {
        Some(path) => of_saved(plan, label, &path),
        None => {
            let earlier = of_revision(plan, label, place)?;
            plan.compare_with(&earlier, label).map_err(|why| wrong(label, &why))?;
            Ok(Vec::new())
        }
    }
}

fn wrong(label: &str, why: &str) -> String {
    format!("error: --against {label}: {why}")
}

/// Adds the saved configurations that differ from the current configurations to the plan. Returns
/// the saved results of the configurations that are unchanged. Fails if these results cannot be
/// compared with new results, for example because the load is different.
fn of_saved(plan: &mut Plan, label: &str, path: &Path) -> Result<Vec<Results>, String> {
    let damaged = |why: String| wrong(label, &format!("cannot read {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| damaged(error.to_string()))?;
    let saved = report::read(&text).map_err(damaged)?;
    let unchanged = plan.compare_with(&saved.plan, label).map_err(|why| wrong(label, &why))?;
    if unchanged.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(difference) = forebay_lab::incomparable(&saved, plan) {
        let names = unchanged.join(", ");
        return Err(wrong(
            label,
            &format!(
                "{names}: starts as before, so only the saved results can be used, but \
                 {difference}; save them again, or name a git revision"
            ),
        ));
    }
    let date = saved.machine.date.clone();
    let kept = saved.results.into_iter().filter(|r| unchanged.contains(&r.configuration.name));
    Ok(kept.map(|results| results.saved(label, &date)).collect())
}

/// Checks out a revision, builds it, and returns the plan of its experiment file.
fn of_revision(plan: &Plan, revision: &str, place: &WorkDirectories<'_>) -> Result<Plan, String> {
    let Some(file) = place.file.and_then(Path::file_name) else {
        return Err(wrong(revision, "nothing was saved under this name"));
    };
    let git = |arguments: &[&str]| git(&plan.dir, arguments);
    let commit = format!("{revision}^{{commit}}");
    let commit = git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &commit])
        .map_err(|_| wrong(revision, "neither saved results (--save) nor a revision in git"))?;
    let refused = |why: String| wrong(revision, &why);
    let top = git(&["rev-parse", "--show-toplevel"]).map_err(refused)?;
    let prefix = git(&["rev-parse", "--show-prefix"]).map_err(refused)?;
    let out = place.out.canonicalize().map_err(|error| cannot_write(place.out, &error))?;
    let checkout = out.join(format!("against-{}", commit.get(..12).unwrap_or(&commit)));
    let dir = checkout.join(&prefix);
    let build = plan.build.clone().unwrap_or_default();
    if fs::read_to_string(checkout.join(BUILT)).ok().as_ref() != Some(&build) {
        check_out(Path::new(&top), &commit, &checkout).map_err(refused)?;
        run_build(&build, &dir, place.quiet).map_err(refused)?;
        fs::write(checkout.join(BUILT), &build).map_err(|error| cannot_write(&checkout, &error))?;
    }
    let path = dir.join(file);
    if path.is_file() {
        return Plan::read(&path).map_err(|problem| problem.to_string());
    }
    Err(wrong(revision, &format!("it has no {prefix}{}", file.display())))
}

/// Creates a checkout of `commit`. The checkout shares objects with the repository at `top`.
fn check_out(top: &Path, commit: &str, checkout: &Path) -> Result<(), String> {
    if checkout.exists() {
        fs::remove_dir_all(checkout).map_err(|error| cannot_write(checkout, &error))?;
    }
    let to = checkout.to_str().ok_or("the place of --out is not UTF-8")?;
    git(top, &["clone", "--quiet", "--shared", "--no-checkout", ".", to])?;
    git(checkout, &["-c", "advice.detachedHead=false", "checkout", "--quiet", commit])?;
    Ok(())
}

/// Runs the build command of an earlier revision in its directory.
fn run_build(build: &str, dir: &Path, quiet: bool) -> Result<(), String> {
    if build.is_empty() {
        return Ok(());
    }
    let printed = if quiet { Stdio::null() } else { std::io::stderr().into() };
    let shell = Command::new("sh")
        .args(["-c", build])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(printed)
        .status();
    let status = shell.map_err(|error| format!("cannot run a shell: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the build ([against] build = {build:?}) failed in {}: {status}", dir.display()))
}

/// Runs git. Returns its output without the final line break, or its error message.
fn git(dir: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .current_dir(dir)
        .args(arguments)
        // If a git hook runs this program, these variables name the repository of the hook. Remove
        // the variables, because the experiment may be in another repository.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

// Saves the results of an experiment each time that the servers of a group have run. The servers
// of a group run at the same time. A round has one group, or several.

/// Progress output that also writes the JSON report each time that a group of servers has run.
pub struct Saving {
    shown: Box<dyn Progress>,
    path: PathBuf,
}

impl Saving {
    pub fn new(shown: Box<dyn Progress>, path: PathBuf) -> Self {
        Self { shown, path }
    }
}

impl Progress for Saving {
    fn expect(&mut self, trials: u64) {
        self.shown.expect(trials);
    }

    fn begin(&mut self, round: u32, group: &Group<'_>) {
        self.shown.begin(round, group);
    }

    fn end(&mut self, configuration: &Configuration, trial: &Trial) {
        self.shown.end(configuration, trial);
    }

    fn begin_profile(&mut self, configuration: &Configuration) {
        self.shown.begin_profile(configuration);
    }

    fn end_profile(&mut self, configuration: &Configuration, profile: &Profile) {
        self.shown.end_profile(configuration, profile);
    }

    fn save(&mut self, experiment: &Experiment) -> Result<(), String> {
        let text = format!("{:#}\n", report::json(experiment));
        replace(&self.path, text.as_bytes()).map_err(|error| {
            format!(
                "cannot write {}: {error}; free disk space and continue with --resume",
                self.path.display()
            )
        })
    }
}

/// Writes the stacks of each profile next to the report. An error names the file.
pub fn write_stacks(experiment: &Experiment, out: &Path) -> Result<(), String> {
    for (results, name) in experiment.results.iter().zip(report::folded_names(experiment)) {
        if let (Some(profile), Some(name)) = (&results.profile, name) {
            let path = out.join(name);
            let stacks = &profile.stacks;
            replace_by(&path, |file| stacks.write_folded(file))
                .map_err(|error| super::cannot_write(&path, &error))?;
        }
    }
    Ok(())
}

/// Replaces a file atomically: after a crash, the file has either the old or the new content.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    replace_by(path, |file| file.write_all(text))
}

fn replace_by(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let beside = path.with_file_name(name);
    let written = fs::File::create(&beside).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()
    });
    let written = written.and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_folder() {
        for fine in ["v1.2", "main", "a_b-c"] {
            assert_eq!(name(fine).as_deref(), Ok(fine));
        }
        for wrong in ["", ".", "..", "../x", "a/b", "-x", "a b", &"x".repeat(65)] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}

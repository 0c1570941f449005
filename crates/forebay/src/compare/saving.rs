//! Saves the results of an experiment each time that the servers of a group have run. The servers
//! of a group run at the same time. A round has one group, or several.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use forebay_lab::profile::Profile;
use forebay_lab::{Configuration, Experiment, Group, Progress, Trial, report};

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

//! What came of an experiment so far, kept after every trial.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_lab::{Configuration, Experiment, Group, Progress, Trial, report};

/// Shows progress, and writes the JSON whenever trials have ended.
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

    fn save(&mut self, experiment: &Experiment) -> Result<(), String> {
        let text = format!("{:#}\n", report::json(experiment));
        replace(&self.path, text.as_bytes()).map_err(|error| {
            format!(
                "cannot write {}: {error}; make room and go on with --resume",
                self.path.display()
            )
        })
    }
}

/// Writes a file in place of what is there at once, so that one of them is whole whatever happens.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let beside = path.with_file_name(name);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

//! What came of an experiment so far, kept after every round.

use std::fs;
use std::path::PathBuf;

use forebay_lab::{Configuration, Experiment, Group, Progress, Trial, report};

/// Shows progress, and writes the JSON after every round: in place of the last one at once, so that it
/// is whole whatever happens.
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

    fn save(&mut self, experiment: &Experiment) {
        let beside = self.path.with_extension("json.part");
        let text = format!("{:#}\n", report::json(experiment));
        // A disk that is full now may have room at the end, where it is told.
        if fs::write(&beside, text).and_then(|()| fs::rename(&beside, &self.path)).is_err() {
            let _ = fs::remove_file(&beside);
        }
    }
}

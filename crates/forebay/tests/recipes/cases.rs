//! The requests of a recipe, and their expected answers: a text file for each recipe.
//!
//! Lines of such a file:
//! - `file PATH TEXT` writes a file; the text `PHP` or `PERL` is a script that prints its request.
//! - `host NAME` sets the host of the requests below.
//! - `note TEXT`: the report of `forebay import` has a line with this text for this recipe.
//! - `[https|cert] METHOD TARGET [{NAME: VALUE | NAME: VALUE}] -> STATUS [WORD VALUE]...` is a request.
//!   `cert` sends a client certificate over TLS.
//!
//! The words after the status:
//! - `nginx STATUS` and `import STATUS`: that server has another status.
//! - `except A,B` and `import-except A,B`: these fields, or the `body`, differ from nginx's.
//! - `times N` sends the request N times.
//! - `has TEXT`, up to the end of the line: Forebay's head or body has this text.

use std::fs;
use std::path::Path;

/// A server that gets the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// nginx with the configuration beside the recipe.
    Nginx,
    /// Forebay with the recipe.
    Forebay,
    /// Forebay with the translation of nginx's configuration.
    Imported,
}

/// The connection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Plain,
    Tls,
    TlsWithCertificate,
}

/// A request and its expected answer.
pub struct Case {
    /// The recipe and the line, for messages.
    pub place: String,
    pub transport: Transport,
    pub host: String,
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, String)>,
    pub status: u16,
    pub nginx: u16,
    pub import: u16,
    pub except: Vec<String>,
    pub import_except: Vec<String>,
    pub times: usize,
    pub has: Option<String>,
}

/// A recipe with its requests.
pub struct Recipe {
    pub name: String,
    pub files: Vec<(String, String)>,
    pub notes: Vec<String>,
    pub cases: Vec<Case>,
}

impl Recipe {
    /// Reads the requests of all recipes, in the order of their names.
    pub fn all() -> Vec<Self> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes/cases");
        let mut files: Vec<_> =
            fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let recipe = |path: &std::path::PathBuf| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            Self::parse(name, &fs::read_to_string(path).unwrap())
        };
        files.iter().map(recipe).collect()
    }

    fn parse(name: String, text: &str) -> Self {
        let mut recipe = Self { name, files: Vec::new(), notes: Vec::new(), cases: Vec::new() };
        let mut host = String::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "" | "#" => {}
                "host" => host = rest.to_owned(),
                "note" => recipe.notes.push(rest.to_owned()),
                "file" => {
                    let (path, content) = rest.split_once(' ').unwrap_or((rest, ""));
                    recipe.files.push((path.to_owned(), content.to_owned()));
                }
                _ => {
                    let place = format!("{}.txt:{}: {line}", recipe.name, number + 1);
                    recipe.cases.push(Case::parse(place, &host, line));
                }
            }
        }
        recipe
    }

    /// Returns the lines of the importer's report that the recipe does not expect, and the expected
    /// lines that are missing.
    pub fn unexpected_notes(&self, report: &str) -> Vec<String> {
        let file = format!("/{}.conf:", self.name);
        let all: Vec<&str> = report.lines().filter(|line| line.contains(&file)).collect();
        let unexpected =
            all.iter().filter(|line| !self.notes.iter().any(|note| line.contains(note)));
        let missing = self.notes.iter().filter(|note| !all.iter().any(|line| line.contains(*note)));
        let unexpected = unexpected.map(|line| format!("import: unexpected: {line}"));
        let missing = missing.map(|note| format!("{}: import does not report: {note}", self.name));
        unexpected.chain(missing).collect()
    }
}

impl Case {
    fn parse(place: String, host: &str, line: &str) -> Self {
        let (request, answer) = line.split_once(" -> ").unwrap_or_else(|| panic!("{place}"));
        let (request, fields) = match request.split_once(" {") {
            Some((request, fields)) => (request, fields.trim_end_matches('}')),
            None => (request, ""),
        };
        let mut words = request.split(' ').peekable();
        let transport = match *words.peek().unwrap() {
            "https" => Transport::Tls,
            "cert" => Transport::TlsWithCertificate,
            _ => Transport::Plain,
        };
        if transport != Transport::Plain {
            words.next();
        }
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let field = |field: &str| {
            let (name, value) = field.split_once(':').unwrap_or_else(|| panic!("{field}"));
            (name.trim().to_owned(), value.trim().to_owned())
        };
        let fields = fields.split('|').filter(|field| !field.is_empty()).map(field).collect();
        let (answer, has) = match answer.split_once(" has ") {
            Some((answer, has)) => (answer, Some(has.to_owned())),
            None => (answer, None),
        };
        let mut words = answer.split(' ');
        let status = words.next().unwrap().parse().unwrap_or_else(|_| panic!("{place}"));
        let mut case = Self {
            place,
            transport,
            host: host.to_owned(),
            method: method.to_owned(),
            target: target.to_owned(),
            fields,
            status,
            nginx: status,
            import: 0,
            except: Vec::new(),
            import_except: Vec::new(),
            times: 1,
            has,
        };
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_else(|| panic!("{}", case.place));
            let list = || value.split(',').map(str::to_ascii_lowercase).collect();
            match word {
                "nginx" => case.nginx = value.parse().unwrap(),
                "import" => case.import = value.parse().unwrap(),
                "except" => case.except = list(),
                "import-except" => case.import_except = list(),
                "times" => case.times = value.parse().unwrap(),
                _ => panic!("{}: {word}", case.place),
            }
        }
        if case.import == 0 {
            case.import = case.nginx;
        }
        case
    }

    /// Returns the expected status of a server.
    pub fn status_of(&self, server: Server) -> u16 {
        match server {
            Server::Nginx => self.nginx,
            Server::Forebay => self.status,
            Server::Imported => self.import,
        }
    }
}

//! Scenario file of `--scenario`: parses the TOML file and checks it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use forebay_lab::Problem;
use forebay_load::{
    Expectation, Extraction, Part, Pattern, Protocol, ReplyPart, Scenario, ScenarioPlan,
    ScenarioStep, ThinkTime, Url,
};
use serde::Deserialize;
use toml::Spanned;

use super::form::Form;
use super::number;
use crate::body_file;

/// Number of redirects that a step follows by default.
const REDIRECTS: u32 = 10;
/// Maximum number of steps of all scenarios.
const MOST_STEPS: usize = 1000;

/// Reads a scenario file. Returns the requests of all steps, and the scenarios.
pub fn read(path: &Path, url: &Url) -> Result<(Vec<Part>, ScenarioPlan), String> {
    let wrong = |why: String| format!("--scenario {}: {why}", path.display());
    let bytes = body_file::read(path).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    parse(path, &text, url)
        .map_err(|problem| format!("--scenario:\n{}", problem.plain().trim_end()))
}

fn parse(path: &Path, text: &str, url: &Url) -> Result<(Vec<Part>, ScenarioPlan), Problem> {
    let file: ScenarioFile =
        toml::from_str(text).map_err(|error| Problem::of_toml(path, text, &error))?;
    let mut reader =
        ScenarioReader { path, text, url, parts: Vec::new(), plan: ScenarioPlan::default() };
    if file.scenario.is_empty() {
        let help = "add [[scenario]], with at least one [[scenario.step]]";
        return Err(reader.at(0..0, "it has no scenario", help));
    }
    reader.plan.hosts = file.hosts;
    reader.plan.shares_credentials = file.share_credentials;
    let is_only = file.scenario.len() == 1;
    for (index, table) in file.scenario.iter().enumerate() {
        let default = format!("scenario {}", index + 1);
        let name = table.get_ref().name.clone().unwrap_or(default);
        let prefix = if is_only { String::new() } else { format!("{name}: ") };
        reader.add(table, name, (&prefix, &file.fields))?;
    }
    reader.mark_lines();
    Ok((reader.parts, reader.plan))
}

type Fields = BTreeMap<String, Spanned<String>>;

struct ScenarioReader<'a> {
    path: &'a Path,
    text: &'a str,
    url: &'a Url,
    parts: Vec<Part>,
    plan: ScenarioPlan,
}

impl ScenarioReader<'_> {
    fn at(&self, span: Range<usize>, message: impl Into<String>, help: &str) -> Problem {
        Problem::at(self.path, self.text, span, message, help)
    }

    fn add(
        &mut self,
        table: &Spanned<ScenarioTable>,
        name: String,
        (prefix, fields): (&str, &Fields),
    ) -> Result<(), Problem> {
        let (span, table) = (table.span(), table.get_ref());
        if table.step.is_empty() {
            let help = "add [[scenario.step]] with a path";
            return Err(self.at(span, "this scenario has no step", help));
        }
        let think = self.think(table.think.as_ref())?.unwrap_or_default();
        let mut scenario = Scenario {
            name,
            weight: self.positive(table.weight.as_ref())?,
            iterations: u64::from(self.positive(table.iterations.as_ref())?),
            cookies: table.cookies.unwrap_or(true),
            stop_on_failure: table.stop_on_failure.unwrap_or(true),
            steps: Vec::new(),
        };
        let mut known: Vec<String> = Vec::new();
        for step in &table.step {
            let part = self.request(step, &[fields, &table.fields])?;
            self.check_order(step, &part, (table, &known))?;
            let step_think = self.think(step.get_ref().think.as_ref())?;
            let base = ScenarioStep {
                name: format!("{prefix}{}", name_of(step.get_ref(), &part)),
                part: self.parts.len(),
                repeat: self.positive(step.get_ref().repeat.as_ref())?,
                think: step_think.unwrap_or(think),
                redirects: step.get_ref().redirects.or(table.redirects).unwrap_or(REDIRECTS),
                checks: self.checks(&step.get_ref().check)?,
                extractions: self.extractions(&step.get_ref().extract)?,
            };
            known.extend(step.get_ref().extract.keys().cloned());
            self.parts.push(part);
            scenario.steps.push(base);
            if self.parts.len() > MOST_STEPS {
                return Err(self.at(step.span(), "there are more than 1000 steps", "remove some"));
            }
        }
        self.plan.scenarios.push(scenario);
        Ok(())
    }

    /// Returns the request of a step. `common` has the header fields of the file and of the
    /// scenario.
    fn request(&self, step: &Spanned<StepTable>, common: &[&Fields]) -> Result<Part, Problem> {
        let (span, table) = (step.span(), step.get_ref());
        let url = match (&table.path, &table.url) {
            (Some(path), None) => (path, self.url.with_target(path.get_ref())),
            (None, Some(url)) => {
                let parsed = Url::parse(url.get_ref());
                (
                    url,
                    match self.url.protocol() {
                        other if other.is_http2() => parsed.and_then(Url::over_http2),
                        Protocol::Http3 => parsed.and_then(Url::over_http3),
                        _ => parsed,
                    },
                )
            }
            _ => {
                let help = "write path = \"/...\", or url = \"http://...\"";
                return Err(self.at(span, "a step needs either a path or a url", help));
            }
        };
        let (typed, url) = url;
        let url = url.map_err(|error| {
            self.at(typed.span(), error.to_string(), "write a path such as \"/login\"")
        })?;
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, value) in common.iter().chain([&&table.fields]).flat_map(|fields| fields.iter())
        {
            headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            headers.push((name.clone(), value.get_ref().clone()));
        }
        let (body, content_type) = self.body(span, table)?;
        if let Some(content_type) = content_type {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
            headers.push(("Content-Type".to_owned(), content_type));
        }
        let default = if body.is_some() { "POST" } else { "GET" };
        let method = table.method.clone().unwrap_or_else(|| default.to_owned());
        Ok(Part { url, method, headers, body: body.unwrap_or_default(), weight: 1 })
    }

    /// Returns the body of a step, and the media type if the body is a form. Both are `None` if the
    /// step has no body.
    fn body(
        &self,
        span: Range<usize>,
        table: &StepTable,
    ) -> Result<(Option<Vec<u8>>, Option<String>), Problem> {
        let StepTable { body, body_file: file, form, multipart, .. } = table;
        let given = [body.is_some(), file.is_some(), form.is_some(), multipart.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            let help = "give one of body, body_file, form and multipart";
            return Err(self.at(span, "a step has only one body", help));
        }
        let directory = self.path.parent().unwrap_or(Path::new(""));
        if let Some(file) = file {
            let body = body_file::read(&directory.join(file.get_ref()));
            let body = body.map_err(|error| {
                self.at(file.span(), error.to_string(), "give a file beside the scenario file")
            })?;
            return Ok((Some(body), None));
        }
        let wrong = |why: String| self.at(span.clone(), why, "correct the field of the form");
        let fields = form.as_ref().or(multipart.as_ref()).into_iter().flatten();
        if fields.clone().any(|(name, _)| name.is_empty() || name.contains(['@', '='])) {
            return Err(wrong("a name of a form has no @ or =".to_owned()));
        }
        let fields: Vec<String> = fields
            .map(|(name, value)| match value.strip_prefix('@').filter(|_| multipart.is_some()) {
                Some(file) => format!("{name}=@{}", directory.join(file).display()),
                None => format!("{name}={value}"),
            })
            .collect();
        let form = match (form, multipart) {
            (Some(_), _) => Form::urlencoded(&fields, true),
            (_, Some(_)) => Form::multipart(&fields, true),
            _ => return Ok((body.clone().map(String::into_bytes), None)),
        };
        let form = form.map_err(wrong)?;
        Ok((Some(form.body), Some(form.content_type)))
    }

    /// Refuses a request that uses a value before a step has extracted it.
    fn check_order(
        &self,
        step: &Spanned<StepTable>,
        part: &Part,
        (table, known): (&ScenarioTable, &[String]),
    ) -> Result<(), Problem> {
        let names = table.step.iter().flat_map(|step| step.get_ref().extract.keys());
        for name in names.filter(|name| !known.contains(name)) {
            if uses(part, name, &Place::ALL) {
                let message = format!("{{{name}}} is used before a step extracts it");
                let help = "extract the value in an earlier step";
                return Err(self.at(step.span(), message, help));
            }
        }
        Ok(())
    }

    fn checks(&self, table: &CheckTable) -> Result<Vec<Expectation>, Problem> {
        let mut checks = Vec::new();
        if let Some(status) = &table.status {
            let statuses = match status.get_ref() {
                toml::Value::Array(list) => list.iter().map(status_of).collect(),
                one => status_of(one).map(|status| vec![status]),
            };
            let help = "write status = 200, or status = [200, 302]";
            let statuses = statuses.filter(|list: &Vec<u16>| !list.is_empty());
            let statuses =
                statuses.ok_or_else(|| self.at(status.span(), "this is no status", help))?;
            checks.push(Expectation::Status(statuses));
        }
        for (name, pattern) in &table.fields {
            checks.push(Expectation::Field(name.clone(), self.pattern(pattern)?));
        }
        if let Some(text) = &table.body_contains {
            checks.push(Expectation::Contains(text.clone().into_bytes()));
        }
        if let Some(pattern) = &table.body_matches {
            checks.push(Expectation::Matches(self.pattern(pattern)?));
        }
        for (pointer, value) in &table.json {
            self.pointer(pointer, value.span())?;
            let wanted = serde_json::to_value(value.get_ref()).map_err(|error| {
                self.at(value.span(), error.to_string(), "write a text, a number or true")
            })?;
            checks.push(Expectation::Json(pointer.clone(), wanted));
        }
        Ok(checks)
    }

    fn extractions(
        &mut self,
        tables: &BTreeMap<String, Spanned<ExtractTable>>,
    ) -> Result<Vec<Extraction>, Problem> {
        let mut extractions = Vec::new();
        for (name, table) in tables {
            let ExtractTable { regex, json, field, cookie } = table.get_ref();
            let source = match (regex, json, field, cookie) {
                (Some(pattern), None, None, None) => ReplyPart::Body(self.pattern(pattern)?),
                (None, Some(pointer), None, None) => {
                    self.pointer(pointer.get_ref(), pointer.span())?;
                    ReplyPart::Json(pointer.get_ref().clone())
                }
                (None, None, Some(field), None) => ReplyPart::Field(field.clone()),
                (None, None, None, Some(cookie)) => ReplyPart::Cookie(cookie.clone()),
                _ => {
                    let help = "give one of regex, json, field and cookie";
                    return Err(self.at(
                        table.span(),
                        format!("{name} has no single source"),
                        help,
                    ));
                }
            };
            let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            if name == "n" || name.is_empty() || !name.bytes().all(is_name) {
                let help = "use letters, digits, - and _; the name n is the iteration's number";
                return Err(self.at(table.span(), format!("{name:?} is no name"), help));
            }
            let known = self.plan.variables.iter().position(|known| known == name);
            let variable = known.unwrap_or_else(|| {
                self.plan.variables.push(name.clone());
                self.plan.variables.len() - 1
            });
            extractions.push(Extraction { variable, source, is_line: false });
        }
        Ok(extractions)
    }

    /// Marks the extracted values that a request uses in a header field or a multipart body. The
    /// load generator refuses a marked value that contains a line break.
    fn mark_lines(&mut self) {
        let names = self.plan.variables.iter();
        let is_line: Vec<bool> = names
            .map(|name| self.parts.iter().any(|part| uses(part, name, &Place::LINES)))
            .collect();
        let steps = self.plan.scenarios.iter_mut().flat_map(|scenario| &mut scenario.steps);
        for extraction in steps.flat_map(|step| &mut step.extractions) {
            extraction.is_line = is_line[extraction.variable];
        }
    }

    fn pattern(&self, typed: &Spanned<String>) -> Result<Pattern, Problem> {
        Pattern::new(typed.get_ref()).map_err(|why| {
            let help = "correct the regular expression; in '...' a backslash needs no escape";
            self.at(typed.span(), why, help)
        })
    }

    fn pointer(&self, pointer: &str, span: Range<usize>) -> Result<(), Problem> {
        if pointer.is_empty() || pointer.starts_with('/') {
            return Ok(());
        }
        let help = "write a JSON pointer such as \"/items/0/id\"";
        Err(self.at(span, format!("{pointer:?} is no JSON pointer"), help))
    }

    /// Parses `1s` (constant), `1s..3s` (uniform) or `exponential 2s` (with a mean of 2 s). Returns
    /// `None` if `typed` is `None`.
    fn think(&self, typed: Option<&Spanned<String>>) -> Result<Option<ThinkTime>, Problem> {
        let Some(typed) = typed else { return Ok(None) };
        let wrong = |why: String| {
            let help = "write \"1s\", \"1s..3s\" (uniform) or \"exponential 2s\"";
            self.at(typed.span(), why, help)
        };
        let time = |text: &str| number::parse(text.trim()).map_err(wrong);
        let text = typed.get_ref();
        if let Some(mean) = text.strip_prefix("exponential ") {
            return Ok(Some(ThinkTime::Exponential(time(mean)?)));
        }
        let Some((low, high)) = text.split_once("..") else {
            return Ok(Some(ThinkTime::Constant(time(text)?)));
        };
        let (low, high) = (time(low)?, time(high)?);
        if low > high {
            return Err(wrong("the first time is longer than the second".to_owned()));
        }
        Ok(Some(ThinkTime::Uniform(low, high)))
    }

    fn positive(&self, typed: Option<&Spanned<u32>>) -> Result<u32, Problem> {
        match typed {
            Some(typed) if *typed.get_ref() == 0 => {
                Err(self.at(typed.span(), "0 is too small", "write a number from 1"))
            }
            Some(typed) => Ok(*typed.get_ref()),
            None => Ok(1),
        }
    }
}

fn status_of(value: &toml::Value) -> Option<u16> {
    value.as_integer()?.try_into().ok().filter(|status| (200..=999).contains(status))
}

fn name_of(step: &StepTable, part: &Part) -> String {
    step.name.clone().unwrap_or_else(|| format!("{} {}", part.method, part.url.target()))
}

/// Place of a value in a request.
#[derive(PartialEq)]
enum Place {
    Target,
    Field,
    Body,
    Multipart,
}

impl Place {
    const ALL: [Self; 4] = [Self::Target, Self::Field, Self::Body, Self::Multipart];
    /// Places at which a line break begins another field or part.
    const LINES: [Self; 2] = [Self::Field, Self::Multipart];
}

/// Returns true if the request has a placeholder for the value `name` in one of these places.
fn uses(part: &Part, name: &str, places: &[Place]) -> bool {
    let placeholder = format!("{{{name}}}");
    let is_multipart = part.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("content-type") && value.starts_with("multipart/")
    });
    let body = if is_multipart { Place::Multipart } else { Place::Body };
    let is_in = |text: &[u8]| text.windows(placeholder.len()).any(|w| w == placeholder.as_bytes());
    places.contains(&Place::Target) && is_in(part.url.target().as_bytes())
        || places.contains(&Place::Field)
            && part.headers.iter().any(|(_, value)| is_in(value.as_bytes()))
        || places.contains(&body) && is_in(&part.body)
}

// Tables of a scenario file, as serde reads them.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    pub hosts: Vec<String>,
    #[serde(default)]
    pub share_credentials: bool,
    #[serde(default)]
    pub scenario: Vec<Spanned<ScenarioTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioTable {
    pub name: Option<String>,
    pub weight: Option<Spanned<u32>>,
    pub iterations: Option<Spanned<u32>>,
    pub cookies: Option<bool>,
    pub stop_on_failure: Option<bool>,
    pub think: Option<Spanned<String>>,
    pub redirects: Option<u32>,
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    pub step: Vec<Spanned<StepTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    pub name: Option<String>,
    pub method: Option<String>,
    pub path: Option<Spanned<String>>,
    pub url: Option<Spanned<String>>,
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    pub body: Option<String>,
    pub body_file: Option<Spanned<String>>,
    pub form: Option<BTreeMap<String, String>>,
    pub multipart: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub extract: BTreeMap<String, Spanned<ExtractTable>>,
    #[serde(default)]
    pub check: CheckTable,
    pub think: Option<Spanned<String>>,
    pub repeat: Option<Spanned<u32>>,
    pub redirects: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtractTable {
    pub regex: Option<Spanned<String>>,
    pub json: Option<Spanned<String>>,
    pub field: Option<String>,
    pub cookie: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckTable {
    pub status: Option<Spanned<toml::Value>>,
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    pub body_contains: Option<String>,
    pub body_matches: Option<Spanned<String>>,
    #[serde(default)]
    pub json: BTreeMap<String, Spanned<toml::Value>>,
}

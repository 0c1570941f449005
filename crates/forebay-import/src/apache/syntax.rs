//! Apache's syntax: directives, sections, continued lines, variables and includes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub use crate::directive::Directive;
use crate::draft::SourceLine;
use crate::source::{DEEPEST_BLOCK, ImportError, Reader, matching};

/// Maximum number of lines in all files together.
const MOST_LINES: usize = 200_000;

/// Maximum length of a line, in bytes, after its variables were replaced.
const LONGEST_LINE: usize = 64 * 1024;

/// Maximum number of bytes that the values of variables add to all lines together.
const MOST_EXPANDED: usize = 8 * 1024 * 1024;

/// Values of the variables in Debian's `/etc/apache2/envvars`.
const DEBIAN: [(&str, &str); 6] = [
    ("APACHE_LOG_DIR", "/var/log/apache2"),
    ("APACHE_RUN_DIR", "/var/run/apache2"),
    ("APACHE_RUN_USER", "www-data"),
    ("APACHE_RUN_GROUP", "www-data"),
    ("APACHE_LOCK_DIR", "/var/lock/apache2"),
    ("APACHE_PID_FILE", "/var/run/apache2/apache2.pid"),
];

/// Reads a configuration and its includes.
pub fn read(file: &Path) -> Result<Vec<Directive>, ImportError> {
    read_with(file, false)
}

/// Reads a file as `read` does. If `runs_php` is true, also reads the sections for PHP modules,
/// whether such a module is loaded or not.
pub fn read_with(file: &Path, runs_php: bool) -> Result<Vec<Directive>, ImportError> {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let dir = absolute.parent().unwrap_or(Path::new("/")).to_owned();
    let defines = DEBIAN.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut parser = Parser {
        reader: Reader::default(),
        root: dir,
        defines: defines.collect(),
        modules: Vec::new(),
        runs_php,
        macros: HashMap::new(),
        lines: 0,
        expanded: 0,
    };
    let mut found = Vec::new();
    parser.file(file, None, &mut found)?;
    Ok(found)
}

/// Returns true if a directive has this name. Ignores upper and lower case.
pub fn is(directive: &Directive, name: &str) -> bool {
    directive.name.eq_ignore_ascii_case(name)
}

/// Returns a directive as one line. For a section, returns only the opening tag.
pub fn line(directive: &Directive) -> String {
    let args = directive.args.join(" ");
    let text = format!("{} {args}", directive.name);
    let text = text.trim_end();
    if directive.block.is_some() { format!("<{text}>") } else { text.to_owned() }
}

/// Reads a section of Perl code, whose lines are not directives, up to its end. Each line of the
/// code becomes the name of a directive within the section.
fn perl(lines: &mut std::vec::IntoIter<Line>, place: SourceLine) -> Result<Directive, ImportError> {
    let mut code = Vec::new();
    for line in lines {
        if line.text.trim().eq_ignore_ascii_case("</Perl>") {
            return Ok(Directive::new("Perl", Vec::new(), Some(code), place));
        }
        code.push(Directive::new(line.text, Vec::new(), None, line.place));
    }
    Err(ImportError::at(&place, "<Perl> has no end", "add </Perl> after its last line"))
}

struct Parser {
    reader: Reader,
    /// Base directory of relative `Include` paths.
    root: PathBuf,
    defines: HashMap<String, String>,
    /// The modules that `LoadModule` lines name. Empty if there are no such lines.
    modules: Vec<String>,
    runs_php: bool,
    /// The parameters and the lines of each `Macro`.
    macros: HashMap<String, (Vec<String>, Vec<Line>)>,
    lines: usize,
    /// The bytes that the values of variables have added.
    expanded: usize,
}

/// A line with its continuations, and the position of its first part.
#[derive(Clone)]
struct Line {
    text: String,
    place: SourceLine,
}

impl Parser {
    /// Reads the directives of one file into `found`. `from` is the line that includes the file.
    fn file(
        &mut self,
        path: &Path,
        from: Option<&SourceLine>,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        let source = self.reader.open(path, from)?;
        let lines = lines(&source.text, &source.name);
        self.lines += lines.len();
        if self.lines > MOST_LINES {
            let message = format!("the configuration has more than {MOST_LINES} lines");
            return Err(ImportError::new(message, "import the file of one site"));
        }
        let mut rest = lines.into_iter();
        let outcome = self.block(&mut rest, None, 0, found);
        self.reader.close();
        outcome
    }

    /// Reads directives into `found` up to the end of the section `opened`, or up to the end of the
    /// file if `opened` is `None`.
    fn block(
        &mut self,
        lines: &mut std::vec::IntoIter<Line>,
        opened: Option<(&str, &SourceLine)>,
        depth: usize,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        while let Some(Line { text, place }) = lines.next() {
            if depth > DEEPEST_BLOCK {
                let message = format!("sections are more than {DEEPEST_BLOCK} deep");
                return Err(ImportError::at(&place, message, "close a section"));
            }
            if let Some(name) = text.strip_prefix("</") {
                let name = name.trim_end_matches('>').trim();
                return match opened {
                    Some((open, _)) if open.eq_ignore_ascii_case(name) => Ok(()),
                    _ => {
                        let message = format!("</{}> ends no section", plain(name));
                        Err(ImportError::at(
                            &place,
                            message,
                            "remove it, or add the line that opens the section",
                        ))
                    }
                };
            }
            let section =
                text.strip_prefix('<').map(|inner| inner.strip_suffix('>').unwrap_or(inner));
            let mut words = words(&self.expand(section.unwrap_or(&text), &place)?);
            if words.is_empty() {
                continue;
            }
            let name = words.remove(0);
            match section {
                Some(_) if name.eq_ignore_ascii_case("Perl") => found.push(perl(lines, place)?),
                Some(_) if name.eq_ignore_ascii_case("Macro") => {
                    self.define_macro(lines, words, &place)?;
                }
                None if name.eq_ignore_ascii_case("Use") => {
                    self.use_macro(words, place, depth, found)?;
                }
                Some(_) => self.section(lines, (name, words), place, depth, found)?,
                None => self.directive(name, words, place, found)?,
            }
        }
        match opened {
            None => Ok(()),
            Some((name, place)) => {
                let message = format!("<{}> has no end", plain(name));
                Err(ImportError::at(
                    place,
                    message,
                    format!("add </{}> after its last line", plain(name)),
                ))
            }
        }
    }

    fn section(
        &mut self,
        lines: &mut std::vec::IntoIter<Line>,
        (name, args): (String, Vec<String>),
        place: SourceLine,
        depth: usize,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        let lower = name.to_ascii_lowercase();
        let condition = args.first().map_or("", String::as_str);
        let (wanted, condition) = match condition.strip_prefix('!') {
            Some(condition) => (false, condition),
            None => (true, condition),
        };
        let holds = match lower.as_str() {
            "ifmodule" => {
                let is_php = condition.trim_start_matches("mod_").starts_with("php");
                Some((self.runs_php && is_php) || self.has_module(condition) == wanted)
            }
            "ifdefine" => Some(self.defines.contains_key(condition) == wanted),
            "ifversion" => Some(is_version(&args) == wanted),
            "iffile" => Some(self.root.join(condition).exists() == wanted),
            "ifdirective" | "ifsection" => Some(wanted),
            _ => None,
        };
        let mut inner = Vec::new();
        // A section whose condition is false must not define variables or load modules.
        let before = (holds == Some(false)).then(|| (self.defines.clone(), self.modules.clone()));
        self.block(lines, Some((&name, &place)), depth + 1, &mut inner)?;
        if let Some((defines, modules)) = before {
            (self.defines, self.modules) = (defines, modules);
        }
        match holds {
            Some(true) => found.extend(inner),
            Some(false) => {}
            None => found.push(Directive::new(name, args, Some(inner), place)),
        }
        Ok(())
    }

    /// Reads the lines of a `Macro` up to its end, and stores them for [`Self::use_macro`].
    fn define_macro(
        &mut self,
        lines: &mut std::vec::IntoIter<Line>,
        mut args: Vec<String>,
        place: &SourceLine,
    ) -> Result<(), ImportError> {
        let is_end = |line: &Line| {
            let name = line.text.strip_prefix("</").map(|name| name.trim_end_matches('>').trim());
            name.is_some_and(|name| name.eq_ignore_ascii_case("Macro"))
        };
        let mut inner = Vec::new();
        loop {
            match lines.next() {
                Some(line) if is_end(&line) => break,
                Some(line) => inner.push(line),
                None => {
                    let help = "add </Macro> after its last line";
                    return Err(ImportError::at(place, "<Macro> has no end", help));
                }
            }
        }
        if args.is_empty() {
            return Err(ImportError::at(place, "<Macro> has no name", "add a name"));
        }
        let name = args.remove(0).to_ascii_lowercase();
        self.macros.insert(name, (args, inner));
        Ok(())
    }

    /// Reads the lines of a macro into `found`, with the arguments in place of the parameters. The
    /// first item of `args` is the name of the macro.
    fn use_macro(
        &mut self,
        args: Vec<String>,
        place: SourceLine,
        depth: usize,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        let name = args.first().cloned().unwrap_or_default();
        let Some((parameters, mut lines)) = self.macros.get(&name.to_ascii_lowercase()).cloned()
        else {
            let message = format!("there is no macro {}", plain(&name));
            return Err(ImportError::at(&place, message, "include the file with its <Macro>"));
        };
        if parameters.len() + 1 != args.len() {
            let message = format!("the macro {} has {} parameters", plain(&name), parameters.len());
            return Err(ImportError::at(&place, message, "write one argument for each of them"));
        }
        let mut pairs: Vec<_> = parameters.iter().zip(&args[1..]).collect();
        // A parameter may be the beginning of a longer one, so replace the longest first.
        pairs.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        self.lines += lines.len();
        for line in &mut lines {
            for (parameter, value) in pairs.iter().filter(|(name, _)| !name.is_empty()) {
                line.text = line.text.replace(parameter.as_str(), value);
            }
            self.expanded += line.text.len();
            if line.text.len() > LONGEST_LINE || self.expanded > MOST_EXPANDED {
                let help = "shorten the arguments of Use";
                return Err(ImportError::at(&place, "the lines of the macro are too long", help));
            }
        }
        if self.lines > MOST_LINES {
            let message = format!("the configuration has more than {MOST_LINES} lines");
            return Err(ImportError::at(&place, message, "import the file of one site"));
        }
        self.block(&mut lines.into_iter(), None, depth + 1, found)
    }

    /// Applies directives that change the parser, such as `Define` and `Include`. Adds all other
    /// directives to `found`. An `Include` of a missing file stays a directive.
    fn directive(
        &mut self,
        name: String,
        args: Vec<String>,
        place: SourceLine,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        let argument = |at: usize| args.get(at).cloned().unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "define" => drop(self.defines.insert(argument(0), argument(1))),
            "undefine" => drop(self.defines.remove(&argument(0))),
            "loadmodule" => {
                self.modules.push(argument(0));
                found.push(Directive::new(name, args, None, place));
            }
            "serverroot" => self.root = PathBuf::from(argument(0)),
            "include" | "includeoptional" => {
                let Some(files) = self.locate(&argument(0)) else {
                    if name.eq_ignore_ascii_case("include") {
                        found.push(Directive::new(name, args, None, place));
                    }
                    return Ok(());
                };
                for path in files.iter().filter(|path| path.is_file()) {
                    self.file(path, Some(&place), found)?;
                }
            }
            _ => found.push(Directive::new(name, args, None, place)),
        }
        Ok(())
    }

    /// Returns the files of an include. Returns an empty list if a name with wildcards matches no
    /// file, and `None` if a file without wildcards does not exist.
    fn locate(&self, pattern: &str) -> Option<Vec<PathBuf>> {
        let relative = pattern.strip_prefix("/etc/apache2/").unwrap_or(pattern);
        let below = [
            self.root.join(relative),
            self.root.join("..").join(relative),
            self.root.join(pattern),
        ];
        let mut empty = None;
        for candidate in below {
            let candidate = if candidate.is_dir() { candidate.join("*") } else { candidate };
            match matching(&candidate) {
                Some(files) if files.is_empty() => empty = Some(files),
                Some(files) => return Some(files),
                None => {}
            }
        }
        empty
    }

    /// Returns true if a module is loaded. Without `LoadModule` lines, all usual modules count as
    /// loaded.
    fn has_module(&self, name: &str) -> bool {
        let name = name.trim_start_matches("mod_").trim_end_matches(".c");
        let is_named = |module: &String| {
            module.trim_end_matches("_module") == name.trim_end_matches("_module")
        };
        if self.modules.is_empty() {
            return !name.starts_with("php") && !name.contains("security") && name != "itk";
        }
        self.modules.iter().any(is_named)
    }

    /// Replaces each `${NAME}` by the value of the variable, or keeps it if there is no such
    /// variable. Returns an error if the line or the configuration becomes too long.
    fn expand(&mut self, text: &str, place: &SourceLine) -> Result<String, ImportError> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            out.push_str(before);
            let value = after
                .split_once('}')
                .and_then(|(name, behind)| self.defines.get(name).map(|value| (value, behind)));
            match value {
                Some((value, behind)) => {
                    out.push_str(value);
                    self.expanded += value.len();
                    rest = behind;
                }
                None => {
                    out.push_str("${");
                    rest = after;
                }
            }
            if out.len() > LONGEST_LINE || self.expanded > MOST_EXPANDED {
                let message = "the values of the variables make the configuration too long";
                let help = "shorten the values of Define, or write them in place of the variables";
                return Err(ImportError::at(place, message, help));
            }
        }
        Ok(out + rest)
    }
}

/// Returns true if the newest Apache, 2.4, meets the condition of `IfVersion`. The caller applies a
/// `!` at the beginning of the condition.
fn is_version(args: &[String]) -> bool {
    const NEWEST: [u32; 3] = [2, 4, 99];
    let (operator, version) = match args {
        [version] => ("=", version.trim_start_matches('!')),
        [operator, version, ..] => (operator.trim_start_matches('!'), version.as_str()),
        [] => return true,
    };
    let parts: Result<Vec<u32>, _> = version.split('.').map(str::parse).collect();
    // Regular expressions on versions are usually about 2.4, so count them as true.
    let Ok(mut parts) = parts else { return true };
    let length = parts.len().min(3);
    parts.truncate(length);
    let order = NEWEST[..length].cmp(&parts[..]);
    match operator {
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        ">=" => order.is_ge(),
        _ => order.is_eq(),
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// Returns the lines that are no comments. A backslash at the end continues a line.
fn lines(text: &str, file: &std::rc::Rc<str>) -> Vec<Line> {
    let mut found: Vec<Line> = Vec::new();
    let mut open: Option<Line> = None;
    for (at, typed) in text.lines().enumerate() {
        let (part, continues) = match typed.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (typed, false),
        };
        match &mut open {
            Some(line) => line.text.push_str(part),
            None => {
                let place = SourceLine { file: file.clone(), line: at + 1 };
                open = Some(Line { text: part.trim_start().to_owned(), place });
            }
        }
        if !continues && let Some(line) = open.take() {
            found.push(line);
        }
    }
    found.extend(open);
    for line in &mut found {
        line.text = line.text.trim().to_owned();
    }
    found.retain(|line| !line.text.is_empty() && !line.text.starts_with('#'));
    found
}

/// Splits a line into words, which may be in quotation marks.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(&first) = chars.peek() {
        if first.is_whitespace() {
            chars.next();
            continue;
        }
        let mut word = String::new();
        if first == '"' || first == '\'' {
            chars.next();
            while let Some(c) = chars.next() {
                match c {
                    c if c == first => break,
                    '\\' if chars.peek() == Some(&first) || chars.peek() == Some(&'\\') => {
                        word.extend(chars.next());
                    }
                    c => word.push(c),
                }
            }
        } else {
            while let Some(&c) = chars.peek() {
                if c.is_whitespace() {
                    break;
                }
                word.push(c);
                chars.next();
            }
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Directive>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x.conf"), text).unwrap();
        read(&dir.path().join("x.conf")).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_continued_quoted_and_expanded() {
        let found = parse(
            "Define ROOT /srv\n# no\nDocumentRoot \"${ROOT}/a b\"\nServerAlias a \\\n  b\n\
             <IfModule mod_ssl.c>\nX \"q\\\"r\" ${NONE}\n</IfModule>\n<IfModule !mod_ssl.c>\nY\n\
             </IfModule>\n<directory /x>\nZ\n</Directory>\n",
        )
        .unwrap();
        let all: Vec<String> = found.iter().map(line).collect();
        let expected =
            ["DocumentRoot /srv/a b", "ServerAlias a b", "X q\"r ${NONE}", "<directory /x>"];
        assert_eq!(all, expected);
        assert_eq!((found[1].place.line, found[3].inside()[0].name.as_str()), (4, "Z"));
    }

    #[test]
    fn macros_and_versions_are_read() {
        let found = parse(
            "<Macro Closed $path $p>\n<Location $path>\nRequire ip $p\n</Location>\n</Macro>\n\
             Use closed /a 10\n<IfVersion < 2.4>\nX\n</IfVersion>\n<IfVersion >= 2.4.10>\nY\n\
             </IfVersion>\n<IfVersion !< 2.4>\nZ\n</IfVersion>\n<IfFile /no/such>\nX\n</IfFile>\n",
        );
        let found = found.unwrap();
        let all: Vec<String> = found.iter().map(line).collect();
        assert_eq!(all, ["<Location /a>", "Y", "Z"]);
        assert_eq!(line(&found[0].inside()[0]), "Require ip 10");
        for (text, error) in [
            ("Use None\n", "no macro None"),
            ("<Macro A $a>\n</Macro>\nUse A\n", "1 parameters"),
            ("<Macro A>\n", "<Macro> has no end"),
            ("<Macro>\n</Macro>\n", "no name"),
            ("<Macro A>\nUse A\n</Macro>\nUse A\n", "deep"),
            ("<Macro A $a>\nUse A $a$a\n</Macro>\nUse A aaaaaaaaaaaaaaaa\n", "long"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn unbalanced_sections_are_an_error_with_their_line() {
        for (text, error) in [
            ("A\n<VirtualHost *:80>\nB\n", ":2: <VirtualHost> has no end"),
            ("A\n</Directory>\n", ":2: </Directory> ends no section"),
            ("<A>\n</B>\n", ":2: </B> ends no section"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
        assert!(parse(&"<A>\n".repeat(10_000)).unwrap_err().contains("deep"));
        assert!(parse("Include x.conf\n").unwrap_err().contains("includes itself"));
        let doubled = |n| format!("Define V{} ${{V{n}}}${{V{n}}}\n", n + 1);
        let lines: String = (0..40).map(doubled).collect();
        let long = parse(&format!("Define V0 aaaa\n{lines}")).unwrap_err();
        assert!(long.contains("too long") && long.contains(":15:"), "{long}");
        let own = format!("Define V aa\n{}", "Define V ${V}${V}\n".repeat(100));
        assert!(parse(&own).unwrap_err().contains("too long"));
        let value = format!("Define V {}\n", "a".repeat(60_000));
        assert!(parse(&format!("{value}{}", "X ${V}\n".repeat(200))).is_err());
    }
}

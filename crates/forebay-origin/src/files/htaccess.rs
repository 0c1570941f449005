//! What the `.htaccess` files of Apache say about who may read a file.
//!
//! Forebay does not apply such files, but it must not send what they protect. So this module
//! answers one question: may everybody read the file? Rules that only shut out some visitors, such
//! as a list of addresses, protect nothing. What depends on the request (`RewriteCond`, `<If>`) is
//! left out.

use forebay_conf::Regex;

/// The part of an `.htaccess` file that restricts access.
#[derive(Default)]
pub struct Htaccess {
    /// The rules of the directory itself come first, and then those of each `<Files>` section.
    groups: Vec<Group>,
    rewrites: Vec<Pattern>,
    redirects: Vec<Pattern>,
    no_listing: Option<Line>,
}

/// A line of an `.htaccess` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of the line, from 1.
    pub number: usize,
    /// The line without white space around it.
    pub text: String,
}

/// The access rules of a directory or of the files with certain names.
#[derive(Default)]
struct Group {
    /// `None`: all files.
    names: Option<Regex>,
    /// `Order allow,deny`; otherwise `Order deny,allow`.
    denies_last: bool,
    allows_all: bool,
    denies_all: bool,
    names_hosts: bool,
    /// Open containers of `Require`, the outermost one first. Each has its kind, and for each
    /// condition whether it lets everybody in.
    requires: Vec<(Container, Vec<bool>)>,
    satisfies_any: bool,
    /// The last line that does not let everybody in.
    restricting: Option<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Any,
    All,
    None,
}

/// A pattern that refuses requests, or a `RewriteRule` that ends the rewriting without a change.
struct Pattern {
    regex: Regex,
    refuses: bool,
    line: Line,
}

/// A section that has begun.
enum Section {
    /// A section whose lines count as those around it.
    Plain,
    /// A section that does not apply.
    Skipped,
    /// `<Files>`, with the number of its group.
    Files(usize),
    /// `<RequireAll>` and its kin.
    Requires,
}

impl Htaccess {
    /// The part of a file that is read, in bytes.
    pub const LONGEST: u64 = 1 << 20;

    /// Reads the text of a file. Ignores what it does not understand.
    pub fn parse(text: &str) -> Self {
        let mut file = Self { groups: vec![Group::default()], ..Self::default() };
        let mut sections = Vec::new();
        // A directory above may have turned the rewriting on.
        let (mut rewrites, mut is_conditional) = (true, false);
        for line in lines(text) {
            let words = words(&line.text);
            let Some((first, rest)) = words.split_first() else { continue };
            let name = first.to_ascii_lowercase();
            if name.starts_with("</") {
                if let Some(Section::Requires) = sections.pop() {
                    file.groups[group_of(&sections)].end_container();
                }
            } else if let Some(section) = name.strip_prefix('<') {
                let section = file.begin(section, rest, group_of(&sections));
                sections.push(section);
            } else if !sections.iter().any(|section| matches!(section, Section::Skipped)) {
                match (name.as_str(), rest) {
                    ("rewriteengine", [on, ..]) => rewrites = !on.eq_ignore_ascii_case("off"),
                    ("rewritecond", _) => is_conditional = true,
                    ("rewriterule", [pattern, to, flags @ ..]) => {
                        if !std::mem::take(&mut is_conditional) {
                            file.rewrites.extend(rewrite(pattern, to, &flags.concat(), line));
                        }
                    }
                    ("redirect", [status, to, ..]) if refuses(status) => {
                        file.redirects.extend(Pattern::new(&format!("^{}", escape(to)), line));
                    }
                    ("redirectmatch", [status, pattern, ..]) if refuses(status) => {
                        file.redirects.extend(Pattern::new(pattern, line));
                    }
                    ("options", _) => {
                        let off = |word: &String| {
                            word.eq_ignore_ascii_case("-indexes")
                                || word.eq_ignore_ascii_case("none")
                        };
                        file.no_listing = rest.iter().any(off).then_some(line);
                    }
                    (name, _) => file.groups[group_of(&sections)].add(name, rest, line),
                }
            }
        }
        if !rewrites {
            file.rewrites.clear();
        }
        file
    }

    /// Returns the first line that restricts access to anything, if there is one.
    pub fn first_restriction(&self) -> Option<&Line> {
        let groups = self.groups.iter().filter(|group| group.is_open() == Some(false));
        let patterns = self.rewrites.iter().chain(&self.redirects).filter(|rule| rule.refuses);
        let lines = groups.filter_map(|group| group.restricting.as_ref());
        lines.chain(patterns.map(|rule| &rule.line)).min_by_key(|line| line.number)
    }

    fn begin(&mut self, section: &str, rest: &[String], group: usize) -> Section {
        let has = |methods: &[String]| {
            methods
                .iter()
                .any(|method| matches!(method.to_ascii_uppercase().as_str(), "GET" | "HEAD"))
        };
        let names = match (section, rest) {
            // Without these modules, Apache would not refuse anything.
            ("ifmodule", [module, ..]) => return Section::when(!module.starts_with('!')),
            ("ifversion", [sign, ..]) => return Section::when(!sign.starts_with('<')),
            ("limit", methods) => return Section::when(has(methods)),
            ("limitexcept", methods) => return Section::when(!has(methods)),
            ("requireany" | "requireall" | "requirenone", _) => {
                self.groups[group].requires.push((
                    match section {
                        "requireall" => Container::All,
                        "requirenone" => Container::None,
                        _ => Container::Any,
                    },
                    Vec::new(),
                ));
                return Section::Requires;
            }
            ("files", [tilde, pattern, ..]) if tilde == "~" => pattern.clone(),
            ("files", [name, ..]) => format!("^(?:{})$", glob(name)),
            ("filesmatch", [pattern, ..]) => pattern.clone(),
            _ => return Section::Skipped,
        };
        let Ok(names) = Regex::new(&names, false) else { return Section::Skipped };
        self.groups.push(Group { names: Some(names), ..Group::default() });
        Section::Files(self.groups.len() - 1)
    }
}

impl Section {
    fn when(applies: bool) -> Self {
        if applies { Self::Plain } else { Self::Skipped }
    }
}

fn group_of(sections: &[Section]) -> usize {
    let group = |section: &Section| match section {
        Section::Files(group) => Some(*group),
        _ => None,
    };
    sections.iter().rev().find_map(group).unwrap_or(0)
}

impl Group {
    fn add(&mut self, name: &str, rest: &[String], line: Line) {
        let has = |word: &str| rest.iter().any(|found| found.eq_ignore_ascii_case(word));
        match name {
            "order" => {
                let order: String = rest.concat().to_ascii_lowercase();
                (self.names_hosts, self.denies_last) = (true, order == "allow,deny");
                self.restrict(line);
            }
            "allow" => (self.names_hosts, self.allows_all) = (true, self.allows_all || has("all")),
            "deny" => {
                (self.names_hosts, self.denies_all) = (true, self.denies_all || has("all"));
                self.restrict(line);
            }
            "satisfy" => self.satisfies_any = has("any"),
            "require" if has("not") => {}
            "require" => {
                let is_open = has("all") && has("granted");
                if self.requires.is_empty() {
                    self.requires.push((Container::Any, Vec::new()));
                }
                if let Some((_, conditions)) = self.requires.last_mut() {
                    conditions.push(is_open);
                }
                if !is_open {
                    self.restrict(line);
                }
            }
            _ => {}
        }
    }

    fn restrict(&mut self, line: Line) {
        self.restricting = Some(line);
    }

    fn end_container(&mut self) {
        let Some((container, conditions)) = self.requires.pop() else { return };
        let is_open = match container {
            // It shuts some visitors out, and lets nobody in.
            Container::None => return,
            _ if conditions.is_empty() => return,
            Container::Any => conditions.contains(&true),
            Container::All => !conditions.contains(&false),
        };
        if self.requires.is_empty() {
            self.requires.push((Container::Any, Vec::new()));
        }
        if let Some((_, outer)) = self.requires.last_mut() {
            outer.push(is_open);
        }
    }

    /// Returns whether everybody may read the files. `None`: the rules say nothing about it.
    fn is_open(&self) -> Option<bool> {
        let hosts = self.names_hosts.then_some(if self.denies_last {
            self.allows_all && !self.denies_all
        } else {
            self.allows_all || !self.denies_all
        });
        let requires = self.requires.first().filter(|(_, conditions)| !conditions.is_empty());
        let requires = requires.map(|(_, conditions)| conditions.contains(&true));
        match (hosts, requires) {
            (Some(hosts), Some(requires)) if self.satisfies_any => Some(hosts || requires),
            (Some(hosts), Some(requires)) => Some(hosts && requires),
            (hosts, requires) => hosts.or(requires),
        }
    }
}

impl Pattern {
    fn new(pattern: &str, line: Line) -> Option<Self> {
        Some(Self { regex: Regex::new(pattern, false).ok()?, refuses: true, line })
    }
}

fn rewrite(pattern: &str, to: &str, flags: &str, line: Line) -> Option<Pattern> {
    let flags = flags.trim_matches(['[', ']']).to_ascii_lowercase();
    let flags: Vec<&str> = flags.split(',').map(str::trim).collect();
    let refuses = flags.iter().any(|flag| match flag.split_once('=') {
        None => matches!(*flag, "f" | "forbidden" | "g" | "gone"),
        Some((name, status)) => matches!(name, "r" | "redirect") && refuses(status),
    });
    let ends = flags.iter().any(|flag| matches!(*flag, "l" | "last" | "end"));
    if !refuses && (to != "-" || !ends) {
        return None;
    }
    let ignores_case = flags.iter().any(|flag| matches!(*flag, "nc" | "nocase"));
    let (is_negated, pattern) = match pattern.strip_prefix('!') {
        Some(pattern) => (true, pattern),
        None => (false, pattern),
    };
    let regex = Regex::new(pattern, ignores_case).ok()?;
    Some(Pattern { regex: if is_negated { regex.negated() } else { regex }, refuses, line })
}

/// Returns true for a status that refuses a request.
fn refuses(status: &str) -> bool {
    status.eq_ignore_ascii_case("gone")
        || status.len() == 3 && status.starts_with(['4', '5']) && status.parse::<u16>().is_ok()
}

/// What all the `.htaccess` files between a root and a file say. [`Verdict::hear`] must be called
/// for each file, that of the root first.
#[derive(Default)]
pub struct Verdict {
    directory: Option<(bool, Option<Source>)>,
    file: Option<(bool, Option<Source>)>,
    rewrite: Option<Source>,
    redirect: Option<Source>,
    listing: Option<Source>,
}

/// The length of the path from the root to the directory of an `.htaccess` file, and a line of the
/// file.
type Source = (usize, Line);

impl Verdict {
    /// Adds an `.htaccess` file. `path` is the path of the wanted file below the root. The first
    /// `start` bytes of it are the directory of the `.htaccess` file.
    pub fn hear(&mut self, htaccess: &Htaccess, path: &[u8], start: usize) {
        let source = |line: &Line| (start, line.clone());
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        for group in &htaccess.groups {
            let Some(is_open) = group.is_open() else { continue };
            let said = Some((is_open, group.restricting.as_ref().map(source)));
            match &group.names {
                None => self.directory = said,
                Some(names) if names.is_match(name) => self.file = said,
                Some(_) => {}
            }
        }
        let url = [b"/", path].concat();
        let first = htaccess.redirects.iter().find(|rule| rule.regex.is_match(&url));
        self.redirect = self.redirect.take().or_else(|| first.map(|rule| source(&rule.line)));
        if !htaccess.rewrites.is_empty() {
            let first = htaccess.rewrites.iter().find(|rule| rule.regex.is_match(&path[start..]));
            self.rewrite = first.filter(|rule| rule.refuses).map(|rule| source(&rule.line));
        }
        self.listing = htaccess.no_listing.as_ref().map(source).or(self.listing.take());
    }

    /// Returns the line that keeps visitors from the file, or from the listing of a directory, and
    /// where its `.htaccess` file is.
    pub fn denial(self, is_listing: bool) -> Option<Source> {
        let access = match self.file.or(self.directory) {
            Some((false, source)) => source,
            _ => None,
        };
        access.or(self.rewrite).or(self.redirect).or(self.listing.filter(|_| is_listing))
    }
}

/// Returns the lines that are not empty. A line that ends with a backslash goes on in the next one.
fn lines(text: &str) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let (part, continues) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        match all.last_mut() {
            Some(last) if goes_on => last.text.push_str(part),
            _ => all.push(Line { number: at + 1, text: part.trim().to_owned() }),
        }
        goes_on = continues;
    }
    all.retain(|line| !line.text.is_empty() && !line.text.starts_with('#'));
    all
}

/// Splits a line as Apache does: quotes keep white space, and `>` ends a section's line.
fn words(line: &str) -> Vec<String> {
    let line = if line.starts_with('<') { line.trim_end_matches('>') } else { line };
    let (mut all, mut rest) = (Vec::new(), line.trim());
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '"' | '\'' => rest[1..].split_once(first).unwrap_or((&rest[1..], "")),
            _ => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        all.push(word.to_owned());
        rest = after.trim_start();
    }
    all
}

fn escape(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_-".contains(c) || !c.is_ascii();
    text.chars().flat_map(|c| (!is_plain(c)).then_some('\\').into_iter().chain([c])).collect()
}

/// Returns the regular expression of a pattern with `*`, `?` and `[...]`.
fn glob(pattern: &str) -> String {
    let (mut regex, mut rest) = (String::new(), pattern);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, rest.split_once(']')) {
            ('*', _) => regex.push_str(".*"),
            ('?', _) => regex.push('.'),
            ('[', Some((class, after))) => {
                let class = class.replacen('!', "^", usize::from(class.starts_with('!')));
                regex.push_str(&format!("[{}]", class.replace('\\', "\\\\")));
                rest = after;
            }
            _ => regex.push_str(&escape(&c.to_string())),
        }
    }
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(files: &[(&str, &str)], path: &str) -> Option<usize> {
        let mut verdict = Verdict::default();
        for (directory, text) in files {
            verdict.hear(&Htaccess::parse(text), path.as_bytes(), directory.len());
        }
        verdict.denial(path.ends_with('/')).map(|(_, line)| line.number)
    }

    #[test]
    fn what_apache_keeps_from_the_public_is_denied() {
        for (text, path, expected) in [
            ("Require all denied", "a.txt", Some(1)),
            ("\n# x\ndeny from all", "a.txt", Some(3)),
            ("Order allow,deny", "a.txt", Some(1)),
            ("Order deny,allow\nDeny from all\nAllow from 127.0.0.1", "a.txt", Some(2)),
            ("Order deny,allow\nDeny from all\nAllow from all", "a.txt", None),
            ("Order allow,deny\nAllow from all\nDeny from 192.0.2.1", "a.txt", None),
            ("AuthType Basic\nAuthName x\nAuthUserFile /x\nRequire valid-user", "a", Some(4)),
            ("Order deny,allow\nDeny from all\nRequire valid-user\nSatisfy any", "a", Some(3)),
            ("Allow from all\nRequire valid-user\nSatisfy any", "a", None),
            ("Require ip 10.0.0.0/8", "a.txt", Some(1)),
            ("Require all granted\nRequire ip 10.0.0.0/8", "a.txt", None),
            (
                "<RequireAll>\nRequire all granted\nRequire not ip 192.0.2.1\n</RequireAll>",
                "a.txt",
                None,
            ),
            (
                "<RequireAll>\nRequire all granted\nRequire valid-user\n</RequireAll>",
                "a.txt",
                Some(3),
            ),
            (
                "<RequireNone>\nRequire ip 192.0.2.1\n</RequireNone>\nRequire all granted",
                "a.txt",
                None,
            ),
            ("<Files \"config.inc\">\nRequire all denied\n</Files>", "a/config.inc", Some(2)),
            ("<Files config.inc>\nRequire all denied\n</Files>", "config_inc", None),
            ("<Files *.i[nm]?>\nDeny from all\n</Files>", "x.inc", Some(2)),
            ("<FilesMatch \"\\.(log|sql)$\">\nDeny from all\n</FilesMatch>", "x.sql", Some(2)),
            ("<FilesMatch \"\\.(log|sql)$\">\nDeny from all\n</FilesMatch>", "x.txt", None),
            ("Require all denied\n<Files ok.txt>\nRequire all granted\n</Files>", "ok.txt", None),
            ("<IfModule mod_authz_core.c>\nRequire all denied\n</IfModule>", "a", Some(2)),
            ("<IfModule !mod_authz_core.c>\nDeny from all\n</IfModule>", "a", None),
            ("<IfVersion < 2.4>\nDeny from all\n</IfVersion>", "a", None),
            ("<Limit PUT DELETE>\nDeny from all\n</Limit>", "a", None),
            ("<LimitExcept GET POST>\nDeny from all\n</LimitExcept>", "a", None),
            ("<If \"%{HTTP_HOST} == 'x'\">\nRequire all denied\n</If>", "a", None),
            ("RewriteEngine on\nRewriteRule ^data/ - [F,L]", "data/x", Some(2)),
            ("RewriteEngine off\nRewriteRule ^data/ - [F,L]", "data/x", None),
            ("RewriteRule ^data/ - [NC, F]", "data/x", Some(1)),
            ("RewriteEngine on\nRewriteRule \\.INC$ - [NC,R=404]", "x.inc", Some(2)),
            ("RewriteEngine on\nRewriteRule ^ok - [L]\nRewriteRule ^ - [F]", "ok", None),
            ("RewriteEngine on\nRewriteRule !^ok - [G]", "no", Some(2)),
            ("RewriteEngine on\nRewriteCond %{HTTPS} off\nRewriteRule ^ - [F]", "x", None),
            ("RedirectMatch 403 /\\.git", "x/.git/HEAD", Some(1)),
            ("Redirect gone /old", "old/x", Some(1)),
            ("Redirect 301 /old /new", "old/x", None),
            ("Require all \\\n denied", "a", Some(1)),
            ("Options -Indexes", "a", None),
            ("Options -Indexes", "a/", Some(1)),
            ("</Files>\n<Files\n<FilesMatch \"(\">\nDeny from all", "a", None),
        ] {
            assert_eq!(denial(&[("", text)], path), expected, "{text}: {path}");
            let has_restriction = Htaccess::parse(text).first_restriction().is_some();
            assert!(has_restriction || expected.is_none() || path == "a/", "{text}");
        }
    }

    #[test]
    fn the_deepest_file_decides() {
        let closed = ("", "Require all denied");
        assert_eq!(denial(&[closed], "data/assets/x.css"), Some(1));
        assert_eq!(denial(&[closed, ("data/", "\nRequire all granted")], "data/x.css"), None);
        assert_eq!(
            denial(&[("", "Require all granted"), ("data/", "\nDeny from all")], "data/x"),
            Some(2)
        );
        let rewrite = "RewriteEngine on\nRewriteRule ^x - [F]";
        assert_eq!(denial(&[("", ""), ("data/", rewrite)], "data/x"), Some(2));
        assert_eq!(denial(&[("", rewrite)], "data/x"), None);
    }
}

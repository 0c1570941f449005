//! What the `.htaccess` files of Apache say about who may read a file.
//!
//! Forebay does not apply such files, but it must not send what they protect. So this module
//! answers one question: may everybody read the file? A rule that shuts out some visitors, such as a
//! list of addresses, keeps all visitors from it. So does a line that cannot be understood. What
//! depends on the request (`RewriteCond`, `<If>`) is left out.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::LazyLock;

use forebay_conf::Regex;

/// Directives that restrict nothing by themselves, in lower case.
static HARMLESS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "acceptpathinfo action addalt addaltbyencoding addaltbytype addcharset adddefaultcharset \
     adddescription addencoding addhandler addicon addiconbyencoding addiconbytype \
     addinputfilter addlanguage addoutputfilter addoutputfilterbytype addtype anonymous \
     anonymous_logemail anonymous_mustgiveemail anonymous_nouserid anonymous_verifyemail \
     authbasicauthoritative authbasicfake authbasicprovider authbasicusedigestalgorithm \
     authdigestalgorithm authdigestdomain authdigestnccheck authdigestnoncelifetime \
     authdigestprovider authdigestqop authgroupfile authldapauthorizeprefix \
     authldapbindauthoritative authldapbinddn authldapbindpassword authldapcompareasuser \
     authldapcomparednonserver authldapdereferencealiases authldapgroupattribute \
     authldapgroupattributeisdn authldapinitialbindasuser authldapinitialbindpattern \
     authldapmaxsubgroupdepth authldapremoteuserattribute authldapremoteuserisdn \
     authldapsearchasuser authldapsubgroupattribute authldapsubgroupclass authname authtype \
     authuserfile authzsendforbiddenonfailure browsermatch browsermatchnocase cgipassauth \
     charsetdefault charsetsourceenc checkbasenamematch checkcaseonly checkspelling \
     cookiedomain cookieexpires cookiehttponly cookiename cookiesamesite cookiesecure \
     cookietracking defaulticon defaultlanguage defaulttype directoryindex directoryslash \
     enablemmap enablesendfile errordocument expiresactive expiresbytype expiresdefault \
     fallbackresource fileetag filterchain filterdeclare filterprotocol filterprovider \
     forcelanguagepriority forcetype header headername indexheadinsert indexignore \
     indexignorereset indexoptions indexorderdefault indexstylesheet languagepriority \
     limitrequestbody metafiles multiviewsmatch passenv perladdvar perlhandler perloptions \
     perlresponsehandler perlsendheader perlsetenv perlsetinputfilter perlsetoutputfilter \
     perlsetupenv perlsetvar readmename redirect redirectmatch redirectpermanent redirecttemp \
     removecharset removeencoding removehandler removeinputfilter removelanguage \
     removeoutputfilter removetype requestheader rewritebase rewritecond rewriteengine \
     rewriteoptions rewriterule serversignature session sessioncookiename sessioncookiename2 \
     sessioncookieremove sessionenv sessionexclude sessionexpiryupdateinterval sessionheader \
     sessioninclude sessionmaxage setenv setenvif setenvifexpr setenvifnocase sethandler \
     setinputfilter setoutputfilter ssierrormsg ssietag ssilastmodified ssilegacyexprparser \
     ssitimeformat ssiundefinedecho ssloptions sslverifydepth substitute unsetenv \
     wsgiscriptreloading xbithack xsendfile"
        .split_whitespace()
        .collect()
});

/// The beginnings of the names of such directives of modules that are not Apache's own.
const HARMLESS_BEGINNINGS: [&str; 6] =
    ["modpagespeed", "passenger", "php_flag", "php_value", "secfilterengine", "suphp_"];

/// The part of an `.htaccess` file that restricts access.
#[derive(Default)]
pub struct Htaccess {
    /// The rules of the directory itself come first, and then those of each `<Files>` section.
    groups: Vec<Group>,
    rewrites: Vec<Pattern>,
    redirects: Vec<Pattern>,
    no_listing: Option<Line>,
    /// The first line that could not be understood. For such a line, Apache answers 500.
    unclear: Option<Line>,
}

/// A line of an `.htaccess` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of the line, from 1.
    pub number: usize,
    /// The line without white space around it.
    pub text: String,
    /// True if the line could not be understood.
    pub is_unclear: bool,
}

impl Line {
    /// Says what the line does.
    pub fn effect(&self) -> &'static str {
        if self.is_unclear {
            "is not understood, and may restrict access for Apache"
        } else {
            "restricts access for Apache"
        }
    }
}

/// The access rules of a directory or of the files with certain names.
#[derive(Default)]
struct Group {
    /// `None`: all files.
    names: Option<Regex>,
    /// The names are more than those of the section, which must not let visitors in.
    is_wider: bool,
    /// `Order allow,deny`; otherwise `Order deny,allow`.
    denies_last: bool,
    allows_all: bool,
    denies_any: bool,
    /// A condition excludes visitors where Apache permits no such condition.
    is_wrong: bool,
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
    /// A section for a module that Apache may lack. It may have directives that are not known.
    Module,
    /// A section that does not apply.
    Skipped,
    /// `<Files>`, with the number of its group.
    Files(usize),
    /// `<RequireAll>` and its kin.
    Requires,
}

impl Htaccess {
    /// The length of the longest file that is understood, in bytes.
    const LONGEST: u64 = 1 << 20;

    /// Reads a file.
    pub fn read(file: impl Read) -> io::Result<Self> {
        let mut text = Vec::new();
        let length = file.take(Self::LONGEST + 1).read_to_end(&mut text)?;
        let mut file = Self::parse(&String::from_utf8_lossy(&text));
        if length as u64 > Self::LONGEST {
            let text = format!("the file is longer than {} bytes", Self::LONGEST);
            file.not_understood(Line { number: 1, text, is_unclear: true });
        }
        Ok(file)
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Self {
        let mut file = Self { groups: vec![Group::default()], ..Self::default() };
        let mut sections = Vec::new();
        // A directory above may have turned the rewriting on.
        let (mut rewrites, mut is_conditional) = (true, false);
        let lines = lines(text);
        let last = lines.last().cloned();
        for line in lines {
            let words = words(&line.text);
            let Some((first, rest)) = words.split_first() else { continue };
            let name = first.to_ascii_lowercase();
            if name.starts_with("</") {
                match sections.pop() {
                    Some(Section::Requires) => {
                        file.groups[group_of(&sections)].end_container(line);
                    }
                    Some(_) => {}
                    None => file.not_understood(line),
                }
            } else if let Some(section) = name.strip_prefix('<') {
                let section = file.begin(section, rest, group_of(&sections));
                let is_skipped = sections.iter().any(|outer| matches!(outer, Section::Skipped));
                if section.is_none() && !is_skipped {
                    file.not_understood(line);
                }
                sections.push(section.unwrap_or(Section::Skipped));
            } else if !sections.iter().any(|section| matches!(section, Section::Skipped)) {
                match (name.as_str(), rest) {
                    ("rewriteengine", [on, ..]) => rewrites = !on.eq_ignore_ascii_case("off"),
                    ("rewritecond", _) => is_conditional = true,
                    ("rewriterule", [pattern, to, flags @ ..]) => {
                        if !std::mem::take(&mut is_conditional) {
                            match rewrite(pattern, to, &flags.concat(), line.clone()) {
                                Ok(rule) => file.rewrites.extend(rule),
                                Err(_) => file.not_understood(line),
                            }
                        }
                    }
                    ("redirect" | "redirectmatch", [status, rest @ ..]) if refuses(status) => {
                        let pattern = match rest {
                            [to, ..] if name == "redirect" => format!("^{}", escape(to)),
                            [pattern, ..] => wider(pattern),
                            [] => String::new(),
                        };
                        match Pattern::new(&pattern, line.clone()) {
                            Ok(pattern) => file.redirects.push(pattern),
                            Err(_) => file.not_understood(line),
                        }
                    }
                    ("options", _) => {
                        let off = |word: &String| {
                            word.eq_ignore_ascii_case("-indexes")
                                || word.eq_ignore_ascii_case("none")
                        };
                        file.no_listing = rest.iter().any(off).then_some(line);
                    }
                    (name, _) => {
                        let is_known =
                            file.groups[group_of(&sections)].add(name, rest, line.clone())
                                || HARMLESS.contains(name)
                                || HARMLESS_BEGINNINGS.iter().any(|begin| name.starts_with(begin))
                                || sections.iter().any(|outer| matches!(outer, Section::Module));
                        if !is_known {
                            file.not_understood(line);
                        }
                    }
                }
            }
        }
        if let (false, Some(last)) = (sections.is_empty(), last) {
            file.not_understood(last);
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
        let lines = lines.chain(patterns.map(|rule| &rule.line)).chain(&self.unclear);
        lines.min_by_key(|line| line.number)
    }

    fn not_understood(&mut self, line: Line) {
        self.unclear.get_or_insert(Line { is_unclear: true, ..line });
    }

    /// Returns `None` for a section that is not understood.
    fn begin(&mut self, section: &str, rest: &[String], group: usize) -> Option<Section> {
        let has = |methods: &[String]| {
            methods
                .iter()
                .any(|method| matches!(method.to_ascii_uppercase().as_str(), "GET" | "HEAD"))
        };
        let names = match (section, rest) {
            // Without these modules, Apache would not refuse anything.
            ("ifmodule", [module, ..]) if module.starts_with('!') => return Some(Section::Skipped),
            ("ifmodule", [module, ..]) => {
                let is_about_access = ["auth", "access"].iter().any(|part| module.contains(part));
                return Some(if is_about_access { Section::Plain } else { Section::Module });
            }
            ("ifversion", [sign, ..]) => return Some(Section::when(!sign.starts_with('<'))),
            ("limit", methods) => return Some(Section::when(has(methods))),
            ("limitexcept", methods) => return Some(Section::when(!has(methods))),
            ("if" | "elseif" | "else" | "ifdefine" | "iffile" | "ifdirective" | "ifsection", _) => {
                return Some(Section::Skipped);
            }
            ("requireany" | "requireall" | "requirenone", _) => {
                self.groups[group].requires.push((
                    match section {
                        "requireall" => Container::All,
                        "requirenone" => Container::None,
                        _ => Container::Any,
                    },
                    Vec::new(),
                ));
                return Some(Section::Requires);
            }
            ("files", [tilde, pattern, ..]) if tilde == "~" => pattern.clone(),
            ("files", [name, ..]) => format!("^(?:{})$", glob(name)),
            ("filesmatch", [pattern, ..]) => pattern.clone(),
            _ => return None,
        };
        let exact = Regex::new(&names, false);
        let is_wider = exact.is_err();
        let names = exact.or_else(|_| Regex::new(&wider(&names), false)).ok()?;
        self.groups.push(Group { names: Some(names), is_wider, ..Group::default() });
        Some(Section::Files(self.groups.len() - 1))
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
    /// Adds an access rule. Returns false if the line is none.
    fn add(&mut self, name: &str, rest: &[String], line: Line) -> bool {
        let has = |word: &str| rest.iter().any(|found| found.eq_ignore_ascii_case(word));
        match name {
            "order" => {
                let order: String = rest.concat().to_ascii_lowercase();
                (self.names_hosts, self.denies_last) = (true, order == "allow,deny");
                self.restrict(line);
            }
            "allow" => (self.names_hosts, self.allows_all) = (true, self.allows_all || has("all")),
            "deny" => {
                (self.names_hosts, self.denies_any) = (true, true);
                self.restrict(line);
            }
            "satisfy" => self.satisfies_any = has("any"),
            "require" => {
                let is_open = has("all") && has("granted") && !has("not");
                if self.requires.is_empty() {
                    self.requires.push((Container::Any, Vec::new()));
                }
                if let Some((container, conditions)) = self.requires.last_mut() {
                    conditions.push(is_open);
                    self.is_wrong |= has("not") && *container != Container::All;
                }
                if !is_open {
                    self.restrict(line);
                }
            }
            _ => return false,
        }
        true
    }

    fn restrict(&mut self, line: Line) {
        self.restricting = Some(line);
    }

    fn end_container(&mut self, line: Line) {
        let Some((container, conditions)) = self.requires.pop() else { return };
        if conditions.is_empty() {
            return;
        }
        let is_open = match container {
            // It shuts some visitors out, and lets nobody in.
            Container::None => false,
            Container::Any => conditions.contains(&true),
            Container::All => !conditions.contains(&false),
        };
        if self.requires.is_empty() {
            self.requires.push((Container::Any, Vec::new()));
        }
        if let Some((outer, conditions)) = self.requires.last_mut() {
            conditions.push(is_open);
            self.is_wrong |= container == Container::None && *outer != Container::All;
        }
        if container == Container::None {
            self.restrict(line);
        }
    }

    /// Returns whether everybody may read the files. `None`: the rules say nothing about it.
    fn is_open(&self) -> Option<bool> {
        let hosts = self.names_hosts.then_some(if self.denies_last {
            self.allows_all && !self.denies_any
        } else {
            self.allows_all || !self.denies_any
        });
        let requires = self.requires.first().filter(|(_, conditions)| !conditions.is_empty());
        let requires = requires.map(|(_, conditions)| conditions.contains(&true) && !self.is_wrong);
        match (hosts, requires) {
            (Some(hosts), Some(requires)) if self.satisfies_any => Some(hosts || requires),
            (Some(hosts), Some(requires)) => Some(hosts && requires),
            (hosts, requires) => hosts.or(requires),
        }
    }
}

impl Pattern {
    fn new(pattern: &str, line: Line) -> Result<Self, String> {
        Ok(Self { regex: Regex::new(pattern, false)?, refuses: true, line })
    }
}

/// Returns the pattern of a `RewriteRule` if it refuses requests or ends the rewriting.
fn rewrite(pattern: &str, to: &str, flags: &str, line: Line) -> Result<Option<Pattern>, String> {
    let flags = flags.trim_matches(['[', ']']).to_ascii_lowercase();
    let flags: Vec<&str> = flags.split(',').map(str::trim).collect();
    let refuses = flags.iter().any(|flag| match flag.split_once('=') {
        None => matches!(*flag, "f" | "forbidden" | "g" | "gone"),
        Some((name, status)) => matches!(name, "r" | "redirect") && refuses(status),
    });
    let ends = flags.iter().any(|flag| matches!(*flag, "l" | "last" | "end"));
    if !refuses && (to != "-" || !ends) {
        return Ok(None);
    }
    let ignores_case = flags.iter().any(|flag| matches!(*flag, "nc" | "nocase"));
    let (is_negated, pattern) = match pattern.strip_prefix('!') {
        Some(pattern) => (true, pattern),
        None => (false, pattern),
    };
    let regex = match Regex::new(pattern, ignores_case) {
        Err(_) if !refuses => return Ok(None),
        Err(_) if !is_negated => Regex::new(&wider(pattern), ignores_case)?,
        regex => regex?,
    };
    let regex = if is_negated { regex.negated() } else { regex };
    Ok(Some(Pattern { regex, refuses, line }))
}

/// Matches what `(?!well-known)` lets through, for the many files that protect `\.(?!well-known)`.
const NOT_WELL_KNOWN: &str = "(?:$|[^w]|w(?:$|[^e]|e(?:$|[^l]|l(?:$|[^l]|l(?:$|[^-])))))";

/// Returns a pattern without its look-around, which [`Regex`] does not have. So the pattern also
/// matches what the look-around excludes.
fn wider(pattern: &str) -> String {
    let (mut wide, mut rest) = (String::new(), pattern);
    while let Some(c) = rest.chars().next() {
        if ["(?!", "(?=", "(?<!", "(?<="].iter().any(|look| rest.starts_with(look)) {
            let (look, after) = rest.split_at(group_length(rest));
            if look == "(?!well-known)"
                && (after.is_empty() || [".*", "|", ")"].iter().any(|end| after.starts_with(end)))
            {
                wide.push_str(NOT_WELL_KNOWN);
            }
            rest = after;
            continue;
        }
        let length =
            c.len_utf8() + usize::from(c == '\\' && rest[1..].starts_with(|c: char| c.is_ascii()));
        wide.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    wide
}

/// Returns the length of the group with which a pattern begins.
fn group_length(pattern: &str) -> usize {
    let (mut depth, mut is_escaped, mut is_class) = (0, false, false);
    for (at, byte) in pattern.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'[' => is_class = true,
            b']' => is_class = false,
            b'(' if !is_class => depth += 1,
            b')' if !is_class => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    pattern.len()
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
    unclear: Option<Source>,
}

/// The length of the path from the root to the directory of an `.htaccess` file, and a line of the
/// file.
type Source = (usize, Line);

impl Verdict {
    /// Adds an `.htaccess` file. `path` is the path of the wanted file below the root. The first
    /// `start` bytes of it are the directory of the `.htaccess` file. `mounts` are the URL paths of
    /// the root.
    pub fn hear(&mut self, htaccess: &Htaccess, path: &[u8], start: usize, mounts: &[Vec<u8>]) {
        let source = |line: &Line| (start, line.clone());
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        for group in &htaccess.groups {
            let Some(is_open) = group.is_open() else { continue };
            let said = Some((is_open, group.restricting.as_ref().map(source)));
            match &group.names {
                None => self.directory = said,
                Some(names) if names.is_match(name) && !(is_open && group.is_wider) => {
                    self.file = said;
                }
                Some(_) => {}
            }
        }
        let redirects = |rule: &&Pattern| {
            mounts.iter().any(|mount| rule.regex.is_match(&[mount, path].concat()))
        };
        let first = htaccess.redirects.iter().find(redirects);
        self.redirect = self.redirect.take().or_else(|| first.map(|rule| source(&rule.line)));
        if !htaccess.rewrites.is_empty() {
            let first = htaccess.rewrites.iter().find(|rule| rule.regex.is_match(&path[start..]));
            self.rewrite = first.filter(|rule| rule.refuses).map(|rule| source(&rule.line));
        }
        self.listing = htaccess.no_listing.as_ref().map(source).or(self.listing.take());
        self.unclear = self.unclear.take().or_else(|| htaccess.unclear.as_ref().map(source));
    }

    /// Returns the line that keeps visitors from the file, or from the listing of a directory, and
    /// where its `.htaccess` file is.
    pub fn denial(self, is_listing: bool) -> Option<Source> {
        let access = match self.file.or(self.directory) {
            Some((false, source)) => source,
            _ => None,
        };
        let listing = self.listing.filter(|_| is_listing);
        self.unclear.or(access).or(self.rewrite).or(self.redirect).or(listing)
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
            _ => all.push(Line { number: at + 1, text: part.trim().to_owned(), is_unclear: false }),
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
            let htaccess = Htaccess::read(text.as_bytes()).unwrap();
            let mounts = [b"/".to_vec(), b"/p/".to_vec()];
            verdict.hear(&htaccess, path.as_bytes(), directory.len(), &mounts);
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
            ("Order allow,deny\nAllow from all\nDeny from 192.0.2.1", "a.txt", Some(3)),
            ("AuthType Basic\nAuthName x\nAuthUserFile /x\nRequire valid-user", "a", Some(4)),
            ("Order deny,allow\nDeny from all\nRequire valid-user\nSatisfy any", "a", Some(3)),
            ("Allow from all\nRequire valid-user\nSatisfy any", "a", None),
            ("Require ip 10.0.0.0/8", "a.txt", Some(1)),
            ("Require all granted\nRequire ip 10.0.0.0/8", "a.txt", None),
            (
                "<RequireAll>\nRequire all granted\nRequire not ip 192.0.2.1\n</RequireAll>",
                "a.txt",
                Some(3),
            ),
            (
                "<RequireAll>\nRequire all granted\nRequire valid-user\n</RequireAll>",
                "a.txt",
                Some(3),
            ),
            (
                "<RequireNone>\nRequire ip 192.0.2.1\n</RequireNone>\nRequire all granted",
                "a.txt",
                Some(3),
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
            ("Require all granted\nRequire not ip 192.0.2.1", "a", Some(2)),
            ("Order deny,allow\nDeny from 192.0.2.1", "a", Some(2)),
            ("Order deny,allow\nDeny from 192.0.2.1\nAllow from all", "a", None),
            ("</Files>\nRequire all granted", "a", Some(1)),
            ("<FilesMatch \"(\">\nRequire all granted\n</FilesMatch>", "a", Some(1)),
            ("Require all granted\n<RequireAll>\nRequire all denied", "a", Some(3)),
            ("\u{feff}Require all denied", "a", Some(1)),
            ("# x\nRequre all denied", "a", Some(2)),
            ("<IfModule mod_authz_core.c>\nRequre all denied\n</IfModule>", "a", Some(2)),
            ("<IfModule mod_none.c>\nNoneEngine on\n</IfModule>", "a", None),
            ("AddType text/x .x\nphp_value a b\nHeader set X y\nErrorDocument 403 /x", "a", None),
            ("AuthMerging And", "a", Some(1)),
            ("Redirect 403 /p/big/a.txt", "big/a.txt", Some(1)),
            ("Redirect 403 /p/big/a.txt", "big/b.txt", None),
            ("<Files a>\nRedirect 403\n</Files>", "a", Some(2)),
            ("RedirectMatch 404 ^/(?!(ok|[)]))[a-z]+$", "no", Some(1)),
            ("RewriteRule ^(?!ok)[a-z]+$ - [F]", "no", Some(1)),
            ("RewriteRule ^(?!ok)[a-z]+$ - [F]", "no.css", None),
            ("RewriteRule (^|/)\\.(?!well-known) - [F]", ".well-known/x", None),
            ("RewriteRule (^|/)\\.(?!well-known) - [F]", "a/.git/x", Some(1)),
            ("<FilesMatch ^(\\.(?!well-known).*|x)$>\nDeny from all\n</FilesMatch>", ".a", Some(2)),
            (
                "<FilesMatch ^(?!x)>\nRequire all granted\n</FilesMatch>\nDeny from all",
                "x",
                Some(4),
            ),
            ("RewriteRule ^(?!ok - [F]", "no", Some(1)),
            ("RewriteRule ^(no - [F]", "no", Some(1)),
            (&format!("{}\nRequire all denied", "# x\n".repeat(300_000)), "a", Some(1)),
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

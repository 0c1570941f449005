//! The Caddyfile's syntax: lines, blocks, snippets, imports and variables of the environment.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

pub use crate::directive::Directive;
use crate::draft::SourceLine;
use crate::source::{DEEPEST_BLOCK, ImportError, Reader, matching};

/// Maximum number of imports that are replaced.
const MOST_IMPORTS: usize = 10_000;
/// Maximum number of words in all files together.
const MOST_WORDS: usize = 500_000;

/// Maximum length of a word without quotation marks, in bytes.
const LONGEST_WORD: usize = 64 * 1024;

/// Maximum length of a file after its variables were replaced, in bytes.
const MOST_EXPANDED: usize = 8 * 1024 * 1024;

/// A word of a Caddyfile, with the line that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    text: String,
    place: SourceLine,
    /// True if the word was in quotation marks.
    is_quoted: bool,
    /// True if the word is the first of its line.
    is_first: bool,
}

/// Reads a Caddyfile and its imports. A directive is a line with its block.
pub fn read(file: &Path) -> Result<Vec<Directive>, ImportError> {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut parser = Parser {
        reader: Reader::default(),
        dir: absolute.parent().unwrap_or(Path::new("/")).to_owned(),
        snippets: HashMap::new(),
        count: 0,
        imports: 0,
        active: Vec::new(),
    };
    let words = parser.words_of(file, None)?;
    let lines = parser.lines(&mut words.into_iter().peekable(), None, 0)?;
    parser.expand(lines, 0)
}

struct Parser {
    reader: Reader,
    dir: PathBuf,
    snippets: HashMap<String, Vec<Directive>>,
    count: usize,
    imports: usize,
    /// The snippets and files whose imports are being replaced.
    active: Vec<String>,
}

type Words = std::iter::Peekable<std::vec::IntoIter<Word>>;

impl Parser {
    /// Reads the words of a file. `from` is the line that imports the file.
    fn words_of(
        &mut self,
        path: &Path,
        from: Option<&SourceLine>,
    ) -> Result<Vec<Word>, ImportError> {
        let source = self.reader.open(path, from)?;
        let words = words(&source.text, &source.name);
        self.reader.close();
        let words = words?;
        self.count += words.len();
        if self.count > MOST_WORDS {
            let message = format!("the configuration has more than {MOST_WORDS} words");
            return Err(ImportError::new(message, "import the file of one site"));
        }
        Ok(words)
    }

    /// Reads lines up to the end of the block `opened`, or up to the end of the file if `opened` is
    /// `None`.
    fn lines(
        &mut self,
        words: &mut Words,
        opened: Option<&SourceLine>,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut found = Vec::new();
        while let Some(first) = words.next() {
            if depth > DEEPEST_BLOCK {
                let message = format!("blocks are more than {DEEPEST_BLOCK} deep");
                return Err(ImportError::at(&first.place, message, "close a block with }"));
            }
            if first.is("}") {
                return match opened {
                    Some(_) => Ok(found),
                    None => Err(ImportError::at(
                        &first.place,
                        "a } ends no block",
                        "remove it, or add the line that opens the block",
                    )),
                };
            }
            let (place, mut line) = (first.place.clone(), vec![first]);
            let mut block = None;
            if line[0].is("{") {
                line.clear();
                block = Some(self.lines(words, Some(&place), depth + 1)?);
            }
            while let Some(next) = words.peek().filter(|_| block.is_none()) {
                // After a comma, the addresses may continue on the next line.
                let continues = line.last().is_some_and(|last| last.text.ends_with(','));
                if next.is_first && (!continues || next.is("}")) {
                    break;
                }
                let Some(next) = words.next() else { break };
                let opens = next.is("{") && words.peek().is_none_or(|after| after.is_first);
                if opens {
                    block = Some(self.lines(words, Some(&place), depth + 1)?);
                } else {
                    line.push(next);
                }
            }
            let mut texts = line.into_iter().map(|word| word.text);
            let name = texts.next().unwrap_or_default();
            found.push(Directive::new(name, texts.collect(), block, place));
        }
        match opened {
            None => Ok(found),
            Some(place) => {
                Err(ImportError::at(place, "this block has no end", "add a } after its last line"))
            }
        }
    }

    /// Replaces each `import` by the lines of its snippet or files. Removes the definitions of
    /// snippets, and stores them.
    fn expand(
        &mut self,
        lines: Vec<Directive>,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut found = Vec::new();
        for mut line in lines {
            let snippet = line.name.strip_prefix('(').and_then(|name| name.strip_suffix(')'));
            if let (Some(name), true) = (snippet, depth == 0) {
                let name = name.to_owned();
                self.snippets.insert(name, line.block.take().unwrap_or_default());
                continue;
            }
            if line.name == "import" {
                self.import(&line, depth, &mut found)?;
                continue;
            }
            if let Some(block) = line.block.take() {
                line.block = Some(self.expand(block, depth + 1)?);
            }
            found.push(line);
        }
        Ok(found)
    }

    /// Appends the lines that an `import` names: a snippet, or the files that match a pattern. An
    /// import of a missing file stays a line. An import that leads to itself is an error.
    fn import(
        &mut self,
        line: &Directive,
        depth: usize,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        self.imports += 1;
        let name = line.arg(0);
        let problem = if self.active.iter().any(|active| active == name) {
            Some(("imports lead back to themselves".to_owned(), "remove this import"))
        } else if depth > DEEPEST_BLOCK {
            let message = format!("blocks and imports are more than {DEEPEST_BLOCK} deep");
            Some((message, "write these lines in place of an import"))
        } else if self.imports > MOST_IMPORTS {
            Some((format!("there are more than {MOST_IMPORTS} imports"), "remove some of them"))
        } else {
            None
        };
        if let Some((message, next)) = problem {
            return Err(ImportError::at(&line.place, message, next));
        }
        if let Some(snippet) = self.snippets.get(name) {
            let mut copy = copied(snippet, &line.args[1..]);
            if let Some(block) = &line.block {
                copy = with_block(copy, block);
            }
            self.count += size(&copy);
            if self.count > MOST_WORDS {
                let message = format!("the imports make more than {MOST_WORDS} words");
                return Err(ImportError::at(&line.place, message, "remove some of them"));
            }
            self.active.push(name.to_owned());
            found.extend(self.expand(copy, depth + 1)?);
            self.active.pop();
            return Ok(());
        }
        let Some(files) = matching(&self.dir.join(name)) else {
            found.push(copied(std::slice::from_ref(line), &[]).remove(0));
            return Ok(());
        };
        for path in files.iter().filter(|path| path.is_file()) {
            let words = self.words_of(path, Some(&line.place))?;
            let lines = self.lines(&mut words.into_iter().peekable(), None, 0)?;
            let lines = copied(&lines, &line.args[1..]);
            self.active.push(name.to_owned());
            found.extend(self.expand(lines, depth + 1)?);
            self.active.pop();
        }
        Ok(())
    }
}

impl Word {
    fn is(&self, text: &str) -> bool {
        !self.is_quoted && self.text == text
    }
}

/// Returns the number of words in lines.
fn size(lines: &[Directive]) -> usize {
    lines.iter().map(|line| 1 + line.args.len() + size(line.inside())).sum()
}

/// Returns lines with the arguments of an import in place of `{args[0]}`, `{args[1]}` and so on.
/// Each copy has its own mark "read", because one site may use a line that another site does not
/// use.
fn copied(lines: &[Directive], args: &[String]) -> Vec<Directive> {
    let fill = |text: &String| {
        let mut text = text.clone();
        if !text.contains("{args") {
            return text;
        }
        for (at, arg) in args.iter().enumerate().take(50) {
            text = text
                .replace(&format!("{{args[{at}]}}"), arg)
                .replace(&format!("{{args.{at}}}"), arg);
        }
        text
    };
    let copy = |line: &Directive| {
        let block = line.block.as_ref().map(|block| copied(block, args));
        let words = line.args.iter().map(fill).collect();
        Directive::new(fill(&line.name), words, block, line.place.clone())
    };
    lines.iter().map(copy).collect()
}

/// Returns lines with the block of an import in place of `{block}`.
fn with_block(lines: Vec<Directive>, block: &[Directive]) -> Vec<Directive> {
    let mut found = Vec::new();
    for mut line in lines {
        if line.name == "{block}" {
            found.extend(copied(block, &[]));
            continue;
        }
        line.block = line.block.map(|inner| with_block(inner, block));
        found.push(line);
    }
    found
}

/// Splits a text into words.
fn words(text: &str, file: &Rc<str>) -> Result<Vec<Word>, ImportError> {
    let text = environment(text, file)?;
    let mut scan = Scan { rest: &text, line: 1 };
    let (mut found, mut is_first) = (Vec::new(), true);
    while let Some(c) = scan.peek() {
        match c {
            '\n' => {
                scan.take();
                is_first = true;
            }
            '\\' if scan.rest.starts_with("\\\n") => {
                scan.take();
                scan.take();
            }
            c if c.is_whitespace() || c == '\u{feff}' => drop(scan.take()),
            '#' => drop(scan.take_until(|c| c == '\n')),
            _ => {
                let place = SourceLine { file: file.clone(), line: scan.line };
                let quote = matches!(c, '"' | '`').then_some(c);
                let text = match quote {
                    Some(quote) => scan.quoted(quote, &place)?,
                    None => scan.take_until(char::is_whitespace).to_owned(),
                };
                if quote.is_none() && text.len() > LONGEST_WORD {
                    let message = format!("this word has more than {LONGEST_WORD} bytes");
                    return Err(ImportError::at(&place, message, "shorten it"));
                }
                let text = match text.strip_prefix("<<").filter(|_| quote.is_none()) {
                    Some(mark) if !mark.is_empty() => scan.heredoc(mark, &place)?,
                    _ => text,
                };
                found.push(Word { text, place, is_quoted: quote.is_some(), is_first });
                is_first = false;
            }
        }
    }
    Ok(found)
}

/// A text that is being read.
struct Scan<'t> {
    rest: &'t str,
    line: usize,
}

impl<'t> Scan<'t> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn take_until(&mut self, ends: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.line += text.matches('\n').count();
        text
    }

    fn quoted(&mut self, quote: char, place: &SourceLine) -> Result<String, ImportError> {
        self.take();
        let mut word = String::new();
        while let Some(c) = self.take() {
            match c {
                c if c == quote => return Ok(word),
                '\\' if quote == '"' && self.peek() == Some('"') => word.extend(self.take()),
                c => word.push(c),
            }
        }
        let help = format!("add a {quote} after the text");
        Err(ImportError::at(place, "the quotation mark has no counterpart", help))
    }

    /// Reads a heredoc: the lines up to a line that begins with `mark`. Removes the indentation of
    /// the line with `mark` from all lines. Returns an error if no line begins with `mark`.
    fn heredoc(&mut self, mark: &str, place: &SourceLine) -> Result<String, ImportError> {
        self.take_until(|c| c == '\n');
        self.take();
        let mut lines = Vec::new();
        while !self.rest.is_empty() {
            let line = self.rest.lines().next().unwrap_or("");
            let indent = line.len() - line.trim_start().len();
            let after = line[indent..].strip_prefix(mark);
            if after.is_some_and(|after| after.is_empty() || after.starts_with(char::is_whitespace))
            {
                self.rest = &self.rest[indent + mark.len()..];
                let text = lines.iter().map(|line: &&str| line.get(indent..).unwrap_or(""));
                return Ok(text.collect::<Vec<_>>().join("\n"));
            }
            lines.push(line);
            self.take_until(|c| c == '\n');
            self.take();
        }
        Err(ImportError::at(place, "this text has no end", format!("add a line {mark}")))
    }
}

/// Maximum length of the name of an environment variable, in bytes.
const LONGEST_NAME: usize = 256;

/// Replaces `{$NAME}` and `{$NAME:default}` by the value of the environment variable, before the
/// text is split into words, as in Caddy. A value may have several words, or none.
fn environment(text: &str, file: &Rc<str>) -> Result<String, ImportError> {
    let (mut out, mut rest) = (String::new(), text);
    // `left` is the number of bytes from the next `}` to the end of the text. Each search for `}`
    // begins after the previous result.
    let mut left = text.find('}').map(|at| text.len() - at);
    while let Some((before, after)) = rest.split_once("{$") {
        out.push_str(before);
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0', '\n', ' ']);
        let of = |inner: &'_ str| {
            let start = &inner.as_bytes()[..inner.len().min(LONGEST_NAME)];
            let (name, default) = match start.iter().position(|byte| *byte == b':') {
                Some(at) => (&inner[..at], &inner[at + 1..]),
                None if inner.len() < LONGEST_NAME => (inner, ""),
                None => return None,
            };
            is_name(name).then(|| std::env::var(name).unwrap_or_else(|_| default.to_owned()))
        };
        if left.is_some_and(|left| left > after.len()) {
            left = after.find('}').map(|at| after.len() - at);
        }
        let value = left.and_then(|left| {
            let (inner, behind) = after.split_at(after.len() - left);
            Some((of(inner)?, &behind[1..]))
        });
        match value {
            Some((value, behind)) => {
                out.push_str(&value);
                rest = behind;
            }
            None => {
                out.push_str("{$");
                rest = after;
            }
        }
        if out.len() > MOST_EXPANDED {
            let place = SourceLine { file: file.clone(), line: 1 };
            let message = "the values of the variables make the file too long";
            return Err(ImportError::at(&place, message, "shorten the values"));
        }
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Directive>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Caddyfile"), text).unwrap();
        read(&dir.path().join("Caddyfile")).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_blocks_snippets_and_imports() {
        let text = "{\n email a@b\n}\n(s) {\n header X {args[0]}\n}\na.example, # no\n b.example {\n \
                    import s y\n respond \"q \\\"r\" 200\n handle /x/* {\n  respond `{z}`\n }\n root {$NO:/d}\n}\n";
        let found = parse(text).unwrap();
        assert_eq!((found[0].name.as_str(), found[0].inside()[0].arg(0)), ("", "a@b"));
        let site = &found[1];
        assert_eq!(
            (site.name.as_str(), &site.args[..]),
            ("a.example,", &["b.example".to_owned()][..])
        );
        let inside: Vec<_> =
            site.inside().iter().map(|d| (d.name.as_str(), d.args.clone())).collect();
        let own = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        assert_eq!(inside[0], ("header", own(&["X", "y"])));
        assert_eq!(inside[1], ("respond", own(&["q \"r", "200"])));
        assert_eq!(site.inside()[2].inside()[0].arg(0), "{z}");
        assert_eq!(inside[3], ("root", own(&["/d"])));
    }

    #[test]
    fn texts_of_several_lines() {
        let found = parse("x {\n respond <<END\n   a\n    b\n   END 200\n}\n").unwrap();
        assert_eq!(found[0].inside()[0].arg(0), "a\n b");
    }

    #[test]
    fn unbalanced_text_is_an_error() {
        for (text, error) in [
            ("a {\n b\n", ":1: this block has no end"),
            ("a\n}\n", ":2: a } ends no block"),
            ("a \"b", ":1: the quotation mark"),
            ("a <<X\nb\n", ":1: this text has no end"),
            ("(s) {\n import s\n}\na {\n import s\n}\n", "lead back"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
        let chain = |count: usize, lines: &str| {
            let snippet =
                |n: usize| format!("(s{n}) {{\n{}}}\n", lines.replace('N', &(n + 1).to_string()));
            (0..count).map(snippet).collect::<String>()
                + &format!("(s{count}) {{\n}}\na {{\n import s0\n}}\n")
        };
        assert!(parse(&chain(16, " import sN\n")).is_ok());
        let found = parse(&chain(16, " import sN\n import sN\n")).unwrap_err();
        assert!(found.contains("more than 10000 imports"), "{found}");
        let found = parse(&chain(60, " import sN\n")).unwrap_err();
        assert!(found.contains("more than 40 deep"), "{found}");
        assert!(parse(&"a {\n".repeat(1_000)).unwrap_err().contains("deep"));
    }
}

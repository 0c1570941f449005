//! nginx's syntax: directives, blocks, quoting and includes.

use std::path::{Path, PathBuf};
use std::rc::Rc;

pub use crate::directive::Directive;
use crate::draft::SourceLine;
use crate::source::{DEEPEST_BLOCK, ImportError, Reader, matching};

/// Maximum number of directives. Real configurations have a few thousand.
const MOST_DIRECTIVES: usize = 200_000;

/// Maximum length of a word, in bytes. nginx has the same limit.
const LONGEST_WORD: usize = 4096;

/// Reads a configuration and its includes.
pub fn read(file: &Path) -> Result<Vec<Directive>, ImportError> {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut parser = Parser {
        reader: Reader::default(),
        dir: absolute.parent().unwrap_or(Path::new("/")).to_owned(),
        count: 0,
    };
    parser.file(file, None)
}

struct Parser {
    reader: Reader,
    /// The directory of the main file. Relative paths begin there.
    dir: PathBuf,
    count: usize,
}

/// Contents of files that Debian's packages include, for use if these files are missing.
const KNOWN_FILES: [(&str, &str); 2] = [
    (
        "proxy_params",
        "proxy_set_header Host $http_host; proxy_set_header X-Real-IP $remote_addr; \
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; \
         proxy_set_header X-Forwarded-Proto $scheme;",
    ),
    ("fastcgi-php.conf", "fastcgi_index index.php; include fastcgi.conf;"),
];

/// Files that the translation does not need.
const NEEDLESS_FILES: [&str; 9] = [
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "scgi_params",
    "uwsgi_params",
    "koi-utf",
    "koi-win",
    "win-utf",
    "options-ssl-nginx.conf",
];

impl Parser {
    fn file(
        &mut self,
        path: &Path,
        from: Option<&SourceLine>,
    ) -> Result<Vec<Directive>, ImportError> {
        let source = self.reader.open(path, from)?;
        let found = self.text(&source.text, source.name);
        self.reader.close();
        found
    }

    fn text(&mut self, text: &str, file: Rc<str>) -> Result<Vec<Directive>, ImportError> {
        let mut tokens = Tokens { rest: text, line: 1, file };
        let found = self.block(&mut tokens, None, 0)?;
        Ok(found)
    }

    /// Reads directives up to the end of the block `opened`, or up to the end of the file if
    /// `opened` is `None`.
    fn block(
        &mut self,
        tokens: &mut Tokens<'_>,
        opened: Option<&SourceLine>,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut found = Vec::new();
        if depth > DEEPEST_BLOCK {
            let message = format!("blocks are more than {DEEPEST_BLOCK} deep");
            return Err(ImportError::at(&tokens.place(), message, "close a block with }"));
        }
        loop {
            let (words, place, end) = self.statement(tokens)?;
            match (end, words.is_empty()) {
                (DirectiveEnd::Semicolon, false) if words[0] == "include" => {
                    self.include(&words, place, &mut found)?;
                }
                (DirectiveEnd::Semicolon, false) => found.push(directive(words, place, None)),
                (DirectiveEnd::Open, false) if words[0].ends_with("_by_lua_block") => {
                    tokens.skip_raw_block(&place)?;
                    found.push(directive(words, place, Some(Vec::new())));
                }
                (DirectiveEnd::Open, false) => {
                    let block = self.block(tokens, Some(&place), depth + 1)?;
                    found.push(directive(words, place, Some(block)));
                }
                (DirectiveEnd::Close, true) if opened.is_some() => return Ok(found),
                (DirectiveEnd::File, true) if opened.is_none() => return Ok(found),
                (end, _) => return Err(unexpected(end, &tokens.place(), &words, opened)),
            }
        }
    }

    /// Reads the words of a directive. Returns them with the line of the first word, and the
    /// character that ends the directive.
    fn statement(
        &mut self,
        tokens: &mut Tokens<'_>,
    ) -> Result<(Vec<String>, SourceLine, DirectiveEnd), ImportError> {
        self.count += 1;
        if self.count > MOST_DIRECTIVES {
            let message = format!("the configuration has more than {MOST_DIRECTIVES} directives");
            return Err(ImportError::at(&tokens.place(), message, "import the files of one site"));
        }
        let mut words = Vec::new();
        let mut place = None;
        loop {
            match tokens.next()? {
                Token::Word(word, line) if word.len() > LONGEST_WORD => {
                    let place = SourceLine { file: tokens.file.clone(), line };
                    let message = format!("this word has more than {LONGEST_WORD} bytes");
                    return Err(ImportError::at(
                        &place,
                        message,
                        "shorten it: nginx refuses it, too",
                    ));
                }
                Token::Word(word, line) => {
                    place.get_or_insert(SourceLine { file: tokens.file.clone(), line });
                    words.push(word);
                }
                Token::End(end) => {
                    let place = place.unwrap_or_else(|| tokens.place());
                    return Ok((words, place, end));
                }
            }
        }
    }

    /// Adds the directives of the included files to `found`. Skips files that the translation does
    /// not need, such as `mime.types`. If an included file is missing, adds the contents that the
    /// file has in Debian. If Forebay does not know these contents, adds the include itself as a
    /// directive.
    fn include(
        &mut self,
        words: &[String],
        place: SourceLine,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        let pattern = words.get(1).map_or("", String::as_str);
        let name = pattern.rsplit('/').next().unwrap_or_default();
        if NEEDLESS_FILES.contains(&name) {
            return Ok(());
        }
        if let Some(files) = self.locate(pattern) {
            for path in files.iter().filter(|path| path.is_file()) {
                found.extend(self.file(path, Some(&place))?);
            }
            return Ok(());
        }
        match KNOWN_FILES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => {
                found.extend(self.text(text, format!("{pattern} of Debian").into())?);
            }
            None => found.push(directive(words.to_vec(), place, None)),
        }
        Ok(())
    }

    /// Returns the files of an include. Looks in the directory of the main file. Also looks in the
    /// parent of this directory, because the main file may be the file of one site. Also finds the
    /// files in a copy of `/etc/nginx` at another path. Returns `None` if a file without wildcards
    /// does not exist.
    fn locate(&self, pattern: &str) -> Option<Vec<PathBuf>> {
        let relative = pattern.strip_prefix("/etc/nginx/").unwrap_or(pattern);
        let mut bases: Vec<&Path> = self.dir.ancestors().take(2).collect();
        if !pattern.contains('*') {
            bases.push(Path::new("/etc/nginx"));
        }
        let below = bases.iter().map(|base| base.join(relative));
        let candidates = below.chain(pattern.starts_with('/').then(|| PathBuf::from(pattern)));
        let mut empty = None;
        for candidate in candidates {
            match matching(&candidate) {
                Some(files) if files.is_empty() => empty = Some(files),
                Some(files) => return Some(files),
                None => {}
            }
        }
        empty
    }
}

fn directive(
    mut words: Vec<String>,
    place: SourceLine,
    block: Option<Vec<Directive>>,
) -> Directive {
    let args = words.split_off(1);
    Directive::new(words.remove(0), args, block, place)
}

/// Returns the error for a directive that ends in the wrong way. `opened` is the line that opened
/// the block.
fn unexpected(
    end: DirectiveEnd,
    place: &SourceLine,
    words: &[String],
    opened: Option<&SourceLine>,
) -> ImportError {
    let word = words.first().map_or("", String::as_str);
    match end {
        DirectiveEnd::File if words.is_empty() => {
            let opened = opened.map_or(place, |opened| opened);
            ImportError::at(opened, "this block has no end", "add a } after its last line")
        }
        DirectiveEnd::File | DirectiveEnd::Close if !words.is_empty() => {
            let message = format!("the directive \"{}\" has no end", shorten(word));
            ImportError::at(place, message, "add a ; after it")
        }
        DirectiveEnd::Close => ImportError::at(
            place,
            "a } ends no block",
            "remove it, or add the line that opens the block",
        ),
        DirectiveEnd::Open => ImportError::at(
            place,
            "a { follows no directive",
            "add the name of the block before it",
        ),
        _ => ImportError::at(place, "a ; ends no directive", "remove it"),
    }
}

fn shorten(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// The end of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectiveEnd {
    Semicolon,
    Open,
    Close,
    File,
}

enum Token {
    Word(String, usize),
    End(DirectiveEnd),
}

struct Tokens<'t> {
    rest: &'t str,
    line: usize,
    file: Rc<str>,
}

impl Tokens<'_> {
    fn place(&self) -> SourceLine {
        SourceLine { file: self.file.clone(), line: self.line }
    }

    fn take(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Returns the next word, or the end of the directive. Skips comments.
    fn next(&mut self) -> Result<Token, ImportError> {
        loop {
            let Some(c) = self.rest.chars().next() else {
                return Ok(Token::End(DirectiveEnd::File));
            };
            let end = match c {
                ';' => DirectiveEnd::Semicolon,
                '{' => DirectiveEnd::Open,
                '}' => DirectiveEnd::Close,
                '#' => {
                    let length = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[length..];
                    continue;
                }
                c if c.is_ascii_whitespace() || c == '\u{feff}' => {
                    self.take();
                    continue;
                }
                '"' | '\'' => return self.quoted(c),
                _ => return Ok(self.word()),
            };
            self.take();
            return Ok(Token::End(end));
        }
    }

    /// Reads a word up to the closing quotation mark.
    fn quoted(&mut self, quote: char) -> Result<Token, ImportError> {
        let start = self.place();
        self.take();
        let mut word = String::new();
        while let Some(c) = self.take() {
            if c == quote {
                return Ok(Token::Word(word, start.line));
            }
            if c == '\\' {
                self.escape(&mut word);
            } else {
                word.push(c);
            }
        }
        let message = "the quotation mark has no counterpart";
        Err(ImportError::at(&start, message, format!("add a {quote} after the text")))
    }

    fn word(&mut self) -> Token {
        let (mut word, line) = (String::new(), self.line);
        while let Some(c) = self.rest.chars().next() {
            // `${name}` is part of a word.
            let is_variable = c == '{' && word.ends_with('$');
            if c.is_ascii_whitespace() || c == ';' || (c == '{' && !is_variable) {
                break;
            }
            self.take();
            if c == '\\' {
                self.escape(&mut word);
            } else {
                word.push(c);
            }
        }
        Token::Word(word, line)
    }

    /// Reads the character after a backslash as nginx does. Quotation marks, a backslash, `t`, `r`
    /// and `n` have a meaning. Other characters keep the backslash.
    fn escape(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => {
                word.push('\\');
                word.push(c);
            }
            None => word.push('\\'),
        }
    }

    /// Skips a block of Lua, which has its own syntax.
    fn skip_raw_block(&mut self, place: &SourceLine) -> Result<(), ImportError> {
        let mut depth = 1;
        while let Some(c) = self.take() {
            depth = match c {
                '{' => depth + 1,
                '}' => depth - 1,
                _ => depth,
            };
            if depth == 0 {
                return Ok(());
            }
        }
        Err(ImportError::at(place, "this block has no end", "add a } after its last line"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Directive>, String> {
        let mut parser = Parser { reader: Reader::default(), dir: "/nowhere".into(), count: 0 };
        parser.text(text, "x".into()).map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_quoted_and_escaped_as_in_nginx() {
        let found =
            parse("a \"b c;{}\" 'd\"' ${e}f \\.php$ # g\n  \"h\\\"i\" j\\\\k;\nl m{ n; } \n# o")
                .unwrap();
        assert_eq!(found[0].args, ["b c;{}", "d\"", "${e}f", "\\.php$", "h\"i", "j\\k"]);
        assert_eq!(found[1].line(), "l m { ... }");
        assert_eq!((found[1].place.line, found[1].inside()[0].name.as_str()), (3, "n"));
        assert!(parse("content_by_lua_block { if x then { } end }\na;").unwrap().len() == 2);
    }

    #[test]
    fn unbalanced_text_is_an_error_with_its_line() {
        for (text, error) in [
            ("a;\nb {\n c;", "x:2: this block has no end"),
            ("a;\n}", "x:2: a } ends no block"),
            ("a\n", "the directive \"a\" has no end"),
            ("a }", "the directive \"a\" has no end"),
            ("{ }", "x:1: a { follows no directive"),
            (";", "x:1: a ; ends no directive"),
            ("a \"b", "x:1: the quotation mark has no counterpart"),
            ("x_by_lua_block {", "x:1: this block has no end"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
        assert!(parse(&"a {".repeat(10_000)).unwrap_err().contains("deep"));
        assert!(parse(&"a;".repeat(300_000)).unwrap_err().contains("more than"));
    }

    #[test]
    fn includes_that_lead_back_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "include b;").unwrap();
        std::fs::write(path("b"), "x;\ninclude a;").unwrap();
        let error = read(&path("a")).unwrap_err().to_string();
        assert!(error.contains("b:2: ") && error.contains("includes itself"), "{error}");
        std::fs::write(path("c"), "a\0;").unwrap();
        assert!(read(&path("c")).unwrap_err().to_string().contains("zero byte"));
        std::fs::write(path("d"), vec![b' '; 5 << 20]).unwrap();
        assert!(read(&path("d")).unwrap_err().to_string().contains("larger than 4 MiB"));
        assert!(read(dir.path()).unwrap_err().to_string().contains("not a file"));
    }

    #[test]
    fn includes_are_found_from_the_directory_of_the_main_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["sites-enabled", "snippets"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("snippets/s.conf", "s;");
        write("sites-enabled/one", "include snippets/s.conf; include /etc/nginx/snippets/*.conf;");
        write("nginx.conf", "include sites-enabled/*; include none/*; include absent.conf;");
        let names = |file: &str| -> Vec<String> {
            let found = read(&dir.path().join(file)).unwrap();
            found.iter().map(|directive| directive.name.clone()).collect()
        };
        assert_eq!(names("sites-enabled/one")[0], "s");
        let all = names("nginx.conf");
        assert_eq!((all[0].as_str(), all.last().unwrap().as_str()), ("s", "include"));
    }
}

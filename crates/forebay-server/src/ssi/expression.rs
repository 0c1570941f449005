//! Evaluates the expressions of `if` and `elif`, as Apache and nginx do: `$A = text`, `$A != text`,
//! `$A = /regex/`, `=~`, `!~`, `<`, `>`, `!`, `&&`, `||` and parentheses. A text alone is true if it
//! is not empty.

use forebay_conf::Regex;

/// Maximum nesting of parentheses and negations.
const DEEPEST: usize = 32;

/// Source of the values of variables.
pub(super) trait VariableValues {
    /// Returns the text with the values of its variables.
    fn fill(&self, text: &[u8]) -> Vec<u8>;
}

/// An expression that cannot be evaluated, with the reason.
pub(super) type Wrong = &'static str;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Text(Vec<u8>),
    Regex { pattern: Vec<u8>, ignores_case: bool },
    Operator(&'static str),
}

/// The operators. [`tokens`] tries them in this order. A longer operator comes before a shorter
/// operator with the same beginning: `==` before `=`.
const OPERATORS: [&str; 13] =
    ["&&", "||", "!=", "!~", "=~", "==", "<=", ">=", "=", "<", ">", "(", ")"];

/// Returns true if the expression is true, and false if not. Fails if the expression is malformed.
pub(super) fn evaluate(expression: &[u8], values: &impl VariableValues) -> Result<bool, Wrong> {
    let tokens = tokens(expression)?;
    let mut parser = ExpressionParser { tokens: &tokens, at: 0, values };
    let value = parser.either(0)?;
    if parser.at == tokens.len() { Ok(value) } else { Err("the expression has a wrong end") }
}

fn tokens(text: &[u8]) -> Result<Vec<Token>, Wrong> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let rest = &text[at..];
        let last = tokens.last();
        let is_before_regex =
            matches!(last, Some(Token::Operator("=" | "==" | "!=" | "=~" | "!~")));
        if rest[0].is_ascii_whitespace() {
            at += 1;
        } else if let Some(operator) = OPERATORS.iter().find(|o| rest.starts_with(o.as_bytes())) {
            tokens.push(Token::Operator(operator));
            at += operator.len();
        } else if rest[0] == b'!' {
            tokens.push(Token::Operator("!"));
            at += 1;
        } else if rest[0] == b'/' && is_before_regex {
            let (pattern, length) = quoted(rest, b'/').ok_or("a regular expression has no end")?;
            let ignores_case = rest.get(length) == Some(&b'i');
            tokens.push(Token::Regex { pattern, ignores_case });
            at += length + usize::from(ignores_case);
        } else if let quote @ (b'\'' | b'"') = rest[0] {
            let (text, length) = quoted(rest, quote).ok_or("a quoted text has no end")?;
            push_text(&mut tokens, text);
            at += length;
        } else {
            let (text, length) = word(rest)?;
            push_text(&mut tokens, text);
            at += length;
        }
    }
    Ok(tokens)
}

/// Adds a text. If a text precedes it, joins both with a space, as in Apache.
fn push_text(tokens: &mut Vec<Token>, text: Vec<u8>) {
    if let Some(Token::Text(before)) = tokens.last_mut() {
        before.push(b' ');
        before.extend_from_slice(&text);
    } else {
        tokens.push(Token::Text(text));
    }
}

/// Returns the text between the quotes at the start of `text`, and the length of the text with both
/// quotes. `\"` becomes `"`, and other backslashes remain. Returns `None` if there is no second
/// quote.
fn quoted(text: &[u8], quote: u8) -> Option<(Vec<u8>, usize)> {
    let (mut inner, mut at) = (Vec::new(), 1);
    loop {
        match *text.get(at)? {
            b'\\' if text.get(at + 1) == Some(&quote) => {
                inner.push(quote);
                at += 2;
            }
            b'\\' => {
                inner.push(b'\\');
                inner.push(*text.get(at + 1)?);
                at += 2;
            }
            byte if byte == quote => return Some((inner, at + 1)),
            byte => {
                inner.push(byte);
                at += 1;
            }
        }
    }
}

/// Returns the unquoted text at the start of `text`, and the length of this text. `v("NAME")`,
/// `reqenv("NAME")` and `%{NAME}` mean a variable, as in the expressions of Apache 2.4.
fn word(text: &[u8]) -> Result<(Vec<u8>, usize), Wrong> {
    for function in [&b"v("[..], b"reqenv(", b"env("] {
        let Some(rest) = text.strip_prefix(function) else { continue };
        let Some(quote @ (b'"' | b'\'')) = rest.first() else { continue };
        let (name, length) = quoted(rest, *quote).ok_or("a quoted text has no end")?;
        if rest.get(length) != Some(&b')') {
            return Err("a parenthesis has no end");
        }
        return Ok((variable(&name), function.len() + length + 1));
    }
    if let Some(rest) = text.strip_prefix(b"%{") {
        let end = memchr::memchr(b'}', rest).ok_or("a brace has no end")?;
        return Ok((variable(&rest[..end]), end + 3));
    }
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let is_escape = byte == b'\\' && at + 1 < text.len();
        if !is_escape && (byte.is_ascii_whitespace() || b"!=<>()&|'\"".contains(&byte)) {
            break;
        }
        at += if is_escape { 2 } else { 1 };
    }
    if at == 0 {
        Err("the expression has a wrong character")
    } else {
        Ok((text[..at].to_vec(), at))
    }
}

fn variable(name: &[u8]) -> Vec<u8> {
    [b"${", name, b"}"].concat()
}

struct ExpressionParser<'a, V> {
    tokens: &'a [Token],
    at: usize,
    values: &'a V,
}

impl<V: VariableValues> ExpressionParser<'_, V> {
    fn take(&mut self, operator: &str) -> bool {
        let is_next =
            matches!(self.tokens.get(self.at), Some(Token::Operator(next)) if *next == operator);
        self.at += usize::from(is_next);
        is_next
    }

    fn either(&mut self, depth: usize) -> Result<bool, Wrong> {
        let mut value = self.both(depth)?;
        while self.take("||") {
            value |= self.both(depth)?;
        }
        Ok(value)
    }

    fn both(&mut self, depth: usize) -> Result<bool, Wrong> {
        let mut value = self.one(depth)?;
        while self.take("&&") {
            value &= self.one(depth)?;
        }
        Ok(value)
    }

    fn one(&mut self, depth: usize) -> Result<bool, Wrong> {
        if depth > DEEPEST {
            return Err("the expression is nested too deep");
        }
        if self.take("!") {
            return self.one(depth + 1).map(|value| !value);
        }
        if self.take("(") {
            let value = self.either(depth + 1)?;
            return if self.take(")") { Ok(value) } else { Err("a parenthesis has no end") };
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<bool, Wrong> {
        let left = match self.tokens.get(self.at) {
            Some(Token::Text(text)) => {
                self.at += 1;
                self.values.fill(text)
            }
            // A missing text before one of these operators, as in `= x`, counts as empty.
            Some(Token::Operator("=" | "==" | "!=" | "=~" | "!~")) => Vec::new(),
            _ => return Err("the expression lacks a text"),
        };
        let operators = ["=", "==", "=~", "!=", "!~", "<", "<=", ">", ">="];
        let Some(operator) = operators.into_iter().find(|operator| self.take(operator)) else {
            return Ok(!left.is_empty());
        };
        let is_negative = operator.starts_with('!');
        match self.tokens.get(self.at) {
            Some(Token::Regex { pattern, ignores_case }) => {
                self.at += 1;
                let pattern = std::str::from_utf8(pattern).map_err(|_| "it is not UTF-8")?;
                let regex = Regex::new(pattern, *ignores_case)
                    .map_err(|_| "the regular expression cannot be used")?;
                Ok(regex.is_match(&left) != is_negative)
            }
            Some(Token::Text(text)) => {
                self.at += 1;
                let right = self.values.fill(text);
                match operator {
                    "=" | "==" => Ok(left == right),
                    "!=" => Ok(left != right),
                    "<" => Ok(left < right),
                    "<=" => Ok(left <= right),
                    ">" => Ok(left > right),
                    ">=" => Ok(left >= right),
                    _ => Err("a regular expression begins and ends with a slash"),
                }
            }
            _ => Err("the expression lacks a text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl VariableValues for Fixed {
        fn fill(&self, text: &[u8]) -> Vec<u8> {
            let text = String::from_utf8_lossy(text);
            let text = text.replace("${A}", "abc").replace("$A", "abc").replace("$EMPTY", "");
            text.replace("${EMPTY}", "").into_bytes()
        }
    }

    #[test]
    fn expressions_have_values() {
        for (expression, value) in [
            ("$A", true),
            ("$EMPTY", false),
            ("! $EMPTY", true),
            ("!$A", false),
            ("$A = abc", true),
            ("$A == 'abc'", true),
            ("$A != abc", false),
            ("$A = \"a\" || $A = abc", true),
            ("$A = abc && $EMPTY", false),
            ("$A = /^a.c$/", true),
            ("$A=/^A/", false),
            ("$A = /^A/i", true),
            ("$A != /b/", false),
            ("$A =~ /c/", true),
            ("$A !~ /c/", false),
            ("$A = /\\//", false),
            ("($A = x || $A) && !($EMPTY)", true),
            ("$A < abd && $A > abb && $A <= abc && $A >= abc", true),
            ("v(\"A\") = 'abc'", true),
            ("%{A} == reqenv('A')", true),
            ("a b = 'a b'", true),
            ("'' = $EMPTY", true),
        ] {
            assert_eq!(evaluate(expression.as_bytes(), &Fixed), Ok(value), "{expression}");
        }
    }

    #[test]
    fn wrong_expressions_are_errors() {
        let deep = "(".repeat(10_000);
        let negative = "!".repeat(10_000);
        for expression in [
            "",
            "$A =",
            "(",
            "$A = abc)",
            "$A && ",
            "$A = /(/",
            "$A = /x",
            "'x",
            "|",
            "$A =~ abc",
            "$A = /a{1000}{1000}{1000}/",
            "v('A' = x",
            "%{A",
            &deep,
            &negative,
        ] {
            assert!(evaluate(expression.as_bytes(), &Fixed).is_err(), "{expression:.40}");
        }
    }
}

//! Results of profile trials: the CPU time of servers, by call stack. Stacks form a tree, because they
//! share their common outer frames.
//!
//! Files use the folded format of Brendan Gregg's flame graphs: one line per stack, such as
//! `main;parse;read 12`, outermost function first. Names of kernel functions end with `_[k]`.

mod script;

pub use script::fold;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Write};

/// Result of a configuration's profile trial. The trial has no influence on other results.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Number of samples per second of CPU time.
    pub frequency: u32,
    /// Number of requests that were completed while samples were taken; `None` if unknown.
    pub requests: Option<u64>,
    /// Call stacks with their numbers of samples.
    pub stacks: Stacks,
    /// Processing steps that the server reports in `Server-Timing` fields, with their median times
    /// in milliseconds.
    pub timings: Vec<(String, f64)>,
    /// Reasons why stacks are missing, and other notes.
    pub notes: Vec<String>,
}

impl Profile {
    /// Returns an empty profile, with the reason why it is empty.
    pub fn none(why: String) -> Self {
        Self { notes: vec![why], ..Self::default() }
    }

    /// Returns the CPU time that one sample represents, in microseconds per request. Returns `None`
    /// if the number of requests or the sampling frequency is 0 or unknown.
    pub fn us_per_request(&self) -> Option<f64> {
        let requests = self.requests.filter(|&requests| requests > 0 && self.frequency > 0)?;
        Some(1e6 / f64::from(self.frequency) / requests as f64)
    }
}

/// Suffix of the names of kernel functions.
pub const KERNEL: &str = "_[k]";

/// Maximum number of nodes, which take about 10 MB. In a full tree, a new stack counts for its
/// longest known prefix.
const MOST_NODES: usize = 100_000;
/// Maximum number of frames of a stack. Further inner frames are dropped.
const DEEPEST: usize = 160;
/// Maximum number of characters of a name.
const LONGEST_NAME: usize = 200;
/// Maximum number of bytes of a line in a file: the deepest stack with the longest names.
const LONGEST_LINE: usize = DEEPEST * (LONGEST_NAME * 4 + 1) + 32;
const ROOT: usize = 0;

/// Tree of call stacks.
#[derive(Clone, Debug)]
pub struct Stacks {
    names: Vec<String>,
    known: HashMap<String, u32>,
    nodes: Vec<Node>,
    cut: u64,
}

/// Function at one position of the tree.
#[derive(Clone, Debug, Default)]
pub struct Node {
    name: u32,
    /// Index of the caller. The root is its own caller.
    pub caller: usize,
    /// Samples in the function itself: first of this profile, then of the profile that
    /// [`beside`](Stacks::beside) added.
    pub own: [u64; 2],
    /// Indices of the called functions, by the index of their names.
    callees: BTreeMap<u32, usize>,
}

impl Default for Stacks {
    fn default() -> Self {
        let (names, known) = (vec![String::new()], HashMap::from([(String::new(), 0)]));
        Self { names, known, nodes: vec![Node::default()], cut: 0 }
    }
}

impl Stacks {
    /// Adds a stack with its number of samples. The outermost function is first. Functions deeper
    /// than `DEEPEST` are dropped. If the tree is full, the stack ends before the first function
    /// that has no node below its caller yet.
    pub fn add<'a>(&mut self, stack: impl IntoIterator<Item = &'a str>, count: u64) {
        let mut at = ROOT;
        for name in stack.into_iter().take(DEEPEST) {
            let name = cleaned(name);
            let known = self.known.get(&name).and_then(|name| self.nodes[at].callees.get(name));
            at = match known {
                Some(&callee) => callee,
                None if self.nodes.len() >= MOST_NODES => {
                    self.cut += count;
                    break;
                }
                None => {
                    let name = self.name_index(&name);
                    self.callee(at, name)
                }
            };
        }
        self.nodes[at].own[0] += count;
    }

    /// Merges two profiles into one tree, whose nodes have the samples of both.
    pub fn beside(&self, other: &Self) -> Self {
        let mut both = self.clone();
        let mut places = vec![ROOT; other.nodes.len()];
        both.nodes[ROOT].own[1] = other.nodes[ROOT].own[0];
        for (index, node) in other.nodes.iter().enumerate().skip(1) {
            let name = both.name_index(other.name(index));
            places[index] = both.callee(places[node.caller], name);
            both.nodes[places[index]].own[1] = node.own[0];
        }
        both
    }

    /// Returns the nodes. A caller precedes the functions that it calls. The first node is the
    /// root, which is not a function.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the name of the function at `index`.
    pub fn name(&self, index: usize) -> &str {
        &self.names[self.nodes[index].name as usize]
    }

    /// Returns, for each node, the samples of its function and of all functions that it calls. The
    /// first number is of this profile. The second number is of the profile that
    /// [`beside`](Self::beside) added, or 0.
    pub fn totals(&self) -> Vec<[u64; 2]> {
        let mut totals: Vec<[u64; 2]> = self.nodes.iter().map(|node| node.own).collect();
        for (index, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let of = totals[index];
            totals[node.caller][0] += of[0];
            totals[node.caller][1] += of[1];
        }
        totals
    }

    /// Returns the number of samples of this profile.
    pub fn samples(&self) -> u64 {
        self.nodes.iter().map(|node| node.own[0]).sum()
    }

    /// Returns the number of samples whose stack was shortened because the tree was full.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Writes all stacks in the folded format, sorted.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write_folded(&self, out: &mut dyn Write) -> io::Result<()> {
        let sampled = (0..self.nodes.len()).filter(|&index| self.nodes[index].own[0] > 0);
        let mut lines: Vec<(Vec<&str>, u64)> =
            sampled.map(|index| (self.path(index), self.nodes[index].own[0])).collect();
        lines.sort_unstable();
        for (path, count) in lines {
            writeln!(out, "{} {count}", path.join(";"))?;
        }
        Ok(())
    }

    /// Parses the folded format.
    ///
    /// # Errors
    /// Returns a description of the error, with the line number.
    pub fn read_folded(mut text: impl BufRead) -> Result<Self, String> {
        let mut stacks = Self::default();
        let mut line = Vec::new();
        let mut number = 0;
        while next_line(&mut text, LONGEST_LINE, &mut line).map_err(|error| error.to_string())? {
            number += 1;
            let line = String::from_utf8_lossy(&line);
            let counted = line.rsplit_once(' ').and_then(|(path, count)| {
                Some((path, count.parse::<u32>().ok().filter(|&count| count > 0)?))
            });
            let Some((path, count)) = counted else {
                return Err(format!("line {number} is not a stack followed by a count"));
            };
            stacks.add(path.split(';').filter(|name| !name.is_empty()), count.into());
        }
        Ok(stacks)
    }

    fn name_index(&mut self, name: &str) -> u32 {
        if let Some(&index) = self.known.get(name) {
            return index;
        }
        let index = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.known.insert(name.to_owned(), index);
        index
    }

    fn callee(&mut self, caller: usize, name: u32) -> usize {
        if let Some(&index) = self.nodes[caller].callees.get(&name) {
            return index;
        }
        let index = self.nodes.len();
        self.nodes.push(Node { name, caller, ..Node::default() });
        self.nodes[caller].callees.insert(name, index);
        index
    }

    fn path(&self, index: usize) -> Vec<&str> {
        let mut path = Vec::new();
        let mut at = index;
        while at != ROOT {
            path.push(self.name(at));
            at = self.nodes[at].caller;
        }
        path.reverse();
        path
    }
}

/// Replaces characters that the folded format or a web page cannot contain, and shortens long
/// names. Names come from the measured programs and may contain any character.
fn cleaned(name: &str) -> String {
    // The suffix of kernel functions must survive the truncation of the name.
    let (name, mark) = name.strip_suffix(KERNEL).map_or((name, ""), |name| (name, KERNEL));
    let plain = |c: char| match c {
        ';' => ':',
        // These characters change the direction of text, or are no characters at all.
        c if c.is_control() || "\u{fffe}\u{ffff}".contains(c) => '\u{fffd}',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c => c,
    };
    let mut cleaned: String = name.trim().chars().map(plain).take(LONGEST_NAME).collect();
    if cleaned.is_empty() {
        cleaned.push('?');
    }
    if name.chars().nth(LONGEST_NAME).is_some() {
        cleaned.push('…');
    }
    cleaned + mark
}

/// Numbers of samples of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Function<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// Samples in the function itself: first of this profile, then of the profile that
    /// [`Stacks::beside`] added.
    pub own: [u64; 2],
    /// Samples in the function and in the functions that it calls.
    pub total: [u64; 2],
}

/// Returns all functions of `stacks`. The function with the most samples of its own comes first. In
/// the total of a recursive function, each sample counts only once.
pub fn functions(stacks: &Stacks) -> Vec<Function<'_>> {
    let totals = stacks.totals();
    let mut found: HashMap<&str, Function<'_>> = HashMap::new();
    for (index, node) in stacks.nodes().iter().enumerate().skip(1) {
        let name = stacks.name(index);
        let of = found.entry(name).or_insert(Function { name, own: [0; 2], total: [0; 2] });
        // The outermost call of a recursive function includes the samples of its inner calls.
        let total = if is_called_by(stacks, index, name) { [0; 2] } else { totals[index] };
        of.own = sum(of.own, node.own);
        of.total = sum(of.total, total);
    }
    let mut all: Vec<Function<'_>> = found.into_values().collect();
    all.sort_unstable_by(|a, b| (b.own, b.total, a.name).cmp(&(a.own, a.total, b.name)));
    all
}

fn sum(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] + b[0], a[1] + b[1]]
}

fn is_called_by(stacks: &Stacks, index: usize, name: &str) -> bool {
    let mut at = stacks.nodes()[index].caller;
    while at != 0 {
        if stacks.name(at) == name {
            return true;
        }
        at = stacks.nodes()[at].caller;
    }
    false
}

/// Reads the next line into `line`, without its line end. Bytes after the first `limit` are
/// dropped. Returns false at the end of the text.
fn next_line(text: &mut impl BufRead, limit: usize, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let came = text.fill_buf()?;
        if came.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = came.iter().position(|&byte| byte == b'\n');
        let part = &came[..end.unwrap_or(came.len())];
        line.extend_from_slice(&part[..part.len().min(limit - line.len())]);
        let taken = end.map_or(came.len(), |end| end + 1);
        text.consume(taken);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(stacks: &Stacks) -> String {
        let mut out = Vec::new();
        stacks.write_folded(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn stacks_are_counted_written_sorted_and_read_back() {
        let mut stacks = Stacks::default();
        stacks.add(["main", "serve", "read_[k]"], 2);
        stacks.add(["main", "parse"], 1);
        stacks.add(["main", "serve"], 3);
        stacks.add(["main", "serve", "read_[k]"], 2);
        let text = "main;parse 1\nmain;serve 3\nmain;serve;read_[k] 4\n";
        assert_eq!((folded(&stacks).as_str(), stacks.samples()), (text, 8));
        assert_eq!(stacks.totals()[1], [8, 0]);
        let back = Stacks::read_folded(text.as_bytes()).unwrap();
        assert_eq!(folded(&back), text);
    }

    #[test]
    fn hostile_names_stay_in_their_frame() {
        let mut stacks = Stacks::default();
        let long = "x".repeat(5000) + KERNEL;
        let names = ["a;b 7", "line\nbreak\r\0", "  ", "<script>\"&'", "sp ace 12", long.as_str()];
        stacks.add(names, 5);
        let text = folded(&stacks);
        assert_eq!(text.lines().count(), 1);
        let frames: Vec<&str> = text.trim_end().rsplit_once(' ').unwrap().0.split(';').collect();
        let cut = "x".repeat(LONGEST_NAME) + "…_[k]";
        let changed = ["a:b 7", "line\u{fffd}break", "?", "<script>\"&'", "sp ace 12", &cut];
        assert_eq!(frames[1], "line\u{fffd}break\u{fffd}\u{fffd}");
        assert_eq!((frames[0], &frames[2..]), (changed[0], &changed[2..]));
        assert_eq!(folded(&Stacks::read_folded(text.as_bytes()).unwrap()), text);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut stacks = Stacks::default();
        for number in 0..MOST_NODES as u64 {
            stacks.add(["main", &format!("f{number}"), "leaf"], 1);
        }
        assert_eq!((stacks.nodes().len(), stacks.samples()), (MOST_NODES, MOST_NODES as u64));
        assert!(stacks.cut() > 0 && stacks.names.len() <= MOST_NODES);
        let deep: Vec<String> = (0..10_000).map(|depth| depth.to_string()).collect();
        let mut stacks = Stacks::default();
        stacks.add(deep.iter().map(String::as_str), 1);
        assert_eq!(stacks.nodes().len(), 1 + DEEPEST);
    }

    #[test]
    fn invalid_folded_text_is_refused_with_its_line() {
        for text in ["a;b 1\nnonsense\n", "a 1\na -1\n", "a 1\na 0\n", "a 1\n\n", "a 1\na 1e9\n"] {
            let wrong = Stacks::read_folded(text.as_bytes()).unwrap_err();
            assert!(wrong.starts_with("line 2 "), "{wrong}");
        }
        let bytes = b"a;\xff\xfe;;b 3\n";
        assert_eq!(folded(&Stacks::read_folded(&bytes[..]).unwrap()), "a;\u{fffd}\u{fffd};b 3\n");
    }

    #[test]
    fn two_trees_beside_each_other_keep_what_only_one_has() {
        let (mut ours, mut theirs) = (Stacks::default(), Stacks::default());
        ours.add(["main", "both"], 3);
        ours.add(["main", "new"], 1);
        theirs.add(["main", "both"], 2);
        theirs.add(["main", "gone", "deep"], 5);
        let both = ours.beside(&theirs);
        let totals = both.totals();
        let of = |name: &str| {
            let index = (0..both.nodes().len()).find(|&index| both.name(index) == name).unwrap();
            totals[index]
        };
        assert_eq!((of("main"), of("both"), of("new")), ([4, 7], [3, 2], [1, 0]));
        assert_eq!((of("gone"), of("deep")), ([0, 5], [0, 5]));
    }

    #[test]
    fn a_function_is_summed_over_all_stacks_and_recursion_counts_once() {
        let text = "main;f;g;f 2\nmain;f 1\nmain;h;f 4\nmain 1\n";
        let stacks = Stacks::read_folded(text.as_bytes()).unwrap();
        let found = functions(&stacks);
        let of = |name: &str| {
            let function = found.iter().find(|function| function.name == name).unwrap();
            (function.own[0], function.total[0])
        };
        assert_eq!((of("main"), of("f"), of("g"), of("h")), ((1, 8), (7, 7), (0, 2), (0, 4)));
        assert_eq!(found[0].name, "f");
    }

    #[test]
    fn lines_come_whole_or_cut_however_the_text_comes() {
        let text = b"ab\n\nabcdefghij\n\xff\xfelast";
        for capacity in 1..20 {
            let mut reader = io::BufReader::with_capacity(capacity, &text[..]);
            let (mut line, mut lines) = (Vec::new(), Vec::new());
            while next_line(&mut reader, 5, &mut line).unwrap() {
                lines.push(line.clone());
            }
            assert_eq!(lines, [&b"ab"[..], b"", b"abcde", b"\xff\xfelas"]);
        }
    }
}

//! Parser of the output of `perf script -F comm,tid,ip,sym,dso`. Each sample has a line with the
//! thread, a line per frame (the innermost first), and an empty line.
//!
//! ```text
//! nginx 18204
//!         ffffffff8209a108 tcp_ack ([kernel.kallsyms])
//!                    4e9fa ngx_writev (/usr/sbin/nginx)
//! ```

use std::io::{self, BufRead};

use super::{DEEPEST, KERNEL, Stacks, next_line};

/// Maximum number of bytes of a line; the rest is dropped. C++ symbols can have thousands of bytes.
/// If a symbol exceeds the limit, the path after it is lost.
const LONGEST_LINE: usize = 16 * 1024;
const UNKNOWN: &str = "[unknown]";

/// Sample that is being read.
#[derive(Default)]
struct Sample {
    thread: Option<String>,
    /// Frames, the innermost first.
    frames: Vec<String>,
}

/// Adds the samples in `text` to `stacks`. Each stack gets the name of its thread's pool as the
/// outermost frame, such as `serve` for `serve-12`.
///
/// # Errors
/// Returns the errors of reading `text`.
pub fn fold(mut text: impl BufRead, stacks: &mut Stacks) -> io::Result<()> {
    let (mut line, mut sample) = (Vec::new(), Sample::default());
    while next_line(&mut text, LONGEST_LINE, &mut line)? {
        match line.first() {
            None => sample.end(stacks),
            Some(b' ' | b'\t') if sample.thread.is_some() => {
                // If a stack has more than `DEEPEST` frames, its outermost frames are lost.
                if sample.frames.len() < DEEPEST {
                    sample.frames.push(function(&String::from_utf8_lossy(&line)));
                }
            }
            Some(_) => {
                sample.end(stacks);
                sample.thread = Some(thread(&String::from_utf8_lossy(&line)));
            }
        }
    }
    sample.end(stacks);
    Ok(())
}

impl Sample {
    fn end(&mut self, stacks: &mut Stacks) {
        let Some(thread) = self.thread.take() else { return };
        // Outermost frames without a name come from a failed unwinding and contain no information.
        while self.frames.last().is_some_and(|frame| frame == UNKNOWN) {
            self.frames.pop();
        }
        let frames = self.frames.iter().rev().map(String::as_str);
        stacks.add([thread.as_str()].into_iter().chain(frames), 1);
        self.frames.clear();
    }
}

/// Returns the name of a thread without its number in a pool: `serve` for `serve-12 4711`. Returns
/// `UNKNOWN` if perf does not know the name.
fn thread(line: &str) -> String {
    let line = line.trim();
    let name = line.rsplit_once(char::is_whitespace).map_or(line, |(name, _)| name.trim_end());
    if name.starts_with(':') {
        // perf prints `:-1` or `:4711` for an unknown name, for example of a process that is
        // ending.
        return UNKNOWN.to_owned();
    }
    let pool = name.trim_end_matches(|c: char| c.is_ascii_digit());
    // Remove digits only after a separator. In `python3`, no separator precedes the digits, so they
    // are part of the name.
    match pool.strip_suffix(['-', '_', '#', ':', '/', ' ']) {
        Some(pool) if !pool.is_empty() && pool.len() + 1 < name.len() => pool.to_owned(),
        _ => name.to_owned(),
    }
}

/// Returns the function of a frame: `ngx_writev` for `4e9fa ngx_writev (/usr/sbin/nginx)`. A frame
/// without a symbol gets the name of its file in brackets, or `[unknown]`. A function of the kernel
/// gets the suffix `KERNEL`.
fn function(line: &str) -> String {
    let line = line.trim();
    let symbol = line.split_once(' ').map_or("", |(_, symbol)| symbol.trim_start());
    // C++ arguments also contain parentheses, and paths can contain spaces. So search for the start
    // of a path or of a name in brackets.
    let found = [" (/", " (["].into_iter().filter_map(|begin| symbol.rfind(begin)).max();
    let (name, file) = match found.or_else(|| symbol.rfind(" (")) {
        Some(at) => (&symbol[..at], symbol[at + 2..].trim_end_matches(')')),
        None => (symbol, ""),
    };
    let is_kernel = file.starts_with("[kernel") || file.starts_with("[guest.kernel");
    let is_module = file.starts_with('[') && file.ends_with("_[k]");
    let module = file.ends_with(".ko") || file.ends_with(".ko.xz") || file.ends_with(".ko.zst");
    let mark = if is_kernel || is_module || module { KERNEL } else { "" };
    if name != UNKNOWN && !name.is_empty() {
        return format!("{}{mark}", without_hash(name));
    }
    let base = file.rsplit('/').next().unwrap_or(file).trim_matches(['[', ']']);
    if base.is_empty() || base == "unknown" {
        return UNKNOWN.to_owned();
    }
    format!("[{base}]{mark}")
}

/// Removes the suffix of Rust's legacy symbols: `::h` and 16 hexadecimal digits, which change with
/// each build.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(text: &[u8]) -> String {
        let mut stacks = Stacks::default();
        fold(text, &mut stacks).unwrap();
        let mut out = Vec::new();
        stacks.write_folded(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn samples_of_perf_become_stacks() {
        let text = b"nginx 18204 \n\
            \tffffffff8209a108 tcp_ack ([kernel.kallsyms])\n\
            \t           4e9fa ngx_writev (/usr/sbin/nginx)\n\
            \t           a2b37 [unknown] (/usr/sbin/nginx)\n\
            \t           253ad main (/usr/sbin/nginx)\n\
            \n\
            serve-0 18214 \n\
            \t 1a5e7e1 forebay::serve::{{closure}}::h0123456789abcdef (/x y/fore (1)/forebay)\n\
            \tffffffffffffffff [unknown] ([unknown])\n\
            \n\
            serve-12 18215 \n\
            \t 1 operator()(int, char) const (/x)\n\
            \t 1 ext4_getblk (/lib/modules/6.1/ext4.ko.xz)\n";
        assert_eq!(
            folded(text),
            "nginx;main;[nginx];ngx_writev;tcp_ack_[k] 1\n\
             serve;ext4_getblk_[k];operator()(int, char) const 1\n\
             serve;forebay::serve::{{closure}} 1\n"
        );
    }

    #[test]
    fn a_thread_without_a_name_is_unknown() {
        let text = b":-1 -1\n\t 1 do_exit ([kernel.kallsyms])\n\n:4711 4711\n\t 1 do_exit ([kernel.kallsyms])\n";
        assert_eq!(folded(text), "[unknown];do_exit_[k] 2\n");
    }

    #[test]
    fn threads_of_a_pool_are_one() {
        for (line, name) in [
            ("serve-12  4711 ", "serve"),
            ("python3 7", "python3"),
            ("tokio-runtime-w 7", "tokio-runtime-w"),
            ("nginx: worker 3 7", "nginx: worker"),
            ("a- 7", "a-"),
            ("-1 7", "-1"),
        ] {
            assert_eq!(thread(line), name);
        }
    }

    #[test]
    fn impossible_output_of_perf_does_no_harm() {
        let mut text = b"\n\n\tframe before any sample (x)\n7 8\n\n".to_vec();
        text.extend(b"a b <i>; 9\n\t1 \xff;\xfe<b> & \"q\" (/x)\n\t\n\t \n\tzz\n\n");
        text.extend(b"deep 1\n");
        for depth in 0..10_000 {
            text.extend(format!("\t1 f{depth} (/x)\n").bytes());
        }
        text.extend(b"\nlong 2\n\t1 ");
        text.extend([b'y'; 100_000]);
        let out = folded(&text);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!((lines[0], lines[1]), ("7 1", "a b <i>:;\u{fffd}:\u{fffd}<b> & \"q\" 1"));
        assert_eq!(lines[2].matches(';').count(), DEEPEST - 1);
        assert_eq!(lines[3], "frame before any sample 1");
        assert!(lines[4].starts_with("long;yyy") && lines[4].len() < 1000);
    }
}
